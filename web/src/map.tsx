// The map: MapLibre with our places, and the dots above them.

import "maplibre-gl/dist/maplibre-gl.css";
import { computed, effect, signal } from "@preact/signals";
import type { Feature, FeatureCollection, Geometry } from "geojson";
import {
  type FilterSpecification,
  type GeoJSONSource,
  type LngLatBoundsLike,
  Map as MapLibre,
  MercatorCoordinate,
  ScaleControl,
  type StyleSpecification,
  setWorkerUrl,
} from "maplibre-gl";
import workerUrl from "maplibre-gl/dist/maplibre-gl-worker.mjs?worker&url";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Legend, Past, pointAt, Tip } from "./above.tsx";
import { Dots } from "./dots.ts";
import { FitIcon, MinusIcon, PlusIcon } from "./icons.tsx";
import { dotColours, NAMES, style } from "./look.ts";
import type { Point } from "./objects.ts";
import { type Picture, pointOf } from "./picture.ts";
import { type Box, HOUSES, type Place, type Places, stretched } from "./places.ts";
import * as state from "./state.ts";
import * as you from "./you.ts";

setWorkerUrl(workerUrl);

const REACH_PX = 16;
const CIRCLE = 48;
const METRES = 111_320; // of a degree of latitude

let map: MapLibre | null = null;
const failed = signal<string | null>(null);

export function fitAll(animate = true): void {
  let box: Box | null = null;
  for (const point of state.picture.value.points.values()) box = stretched(box, point);
  const whole = state.places.value.box() ?? box;
  if (map === null || whole === null) return;
  const container = map.getContainer();
  if (container.clientWidth === 0) {
    map.once("resize", () => fitAll(animate)); // a panel covers the map: when it shows again
    return;
  }
  state.following.value = false;
  map.fitBounds(whole as LngLatBoundsLike, {
    padding: free(container),
    maxZoom: 20,
    animate: animate && !state.still,
  });
}

// The part of the map that nothing covers: not the scale, words above it, buttons, legend or tour.
function free(container: HTMLElement): {
  top: number;
  right: number;
  bottom: number;
  left: number;
} {
  const whole = container.getBoundingClientRect();
  const tour = document.querySelector(".tour")?.getBoundingClientRect();
  const covered = tour ? Math.max(0, whole.bottom - tour.top) : 0;
  const wide = whole.width >= 720;
  const bottom = Math.min(Math.max(52, covered + 16), 0.45 * whole.height);
  let top = 44;
  for (const words of document.querySelectorAll(".chosen-line, .map-note")) {
    const box = words.getBoundingClientRect();
    if (box.height > 0) top = Math.max(top, box.bottom - whole.top + 8);
  }
  top = Math.min(top, 0.45 * whole.height);
  return { top, right: wide ? 72 : 58, bottom, left: wide ? 40 : 14 };
}

export function show(vid: string): void {
  const at = state.picture.value.points.get(vid);
  if (!map || !at) return;
  const zoom = Math.max(map.getZoom(), 18.8);
  if (state.still) map.jumpTo({ center: at, zoom });
  else map.easeTo({ center: at, zoom, duration: 500 });
}

function features(places: Places, floor: string | null): FeatureCollection {
  const shown = [...places.byPath.values()].filter(
    (place) => place.feature.geometry !== null && (place.floor === null || place.floor === floor),
  );
  return {
    type: "FeatureCollection",
    features: shown
      .filter((place) => place.kind !== "floor" && place.kind !== "lift")
      .map((place) => ({
        type: "Feature",
        geometry: place.feature.geometry as Geometry,
        properties: {
          path: place.path,
          kind: place.kind,
          room: places.isRoom(place),
          label: place.kind === "corridor" || standsAlone(place) ? "" : place.name,
        },
      })),
  };
}

function standsAlone(place: Place): boolean {
  return HOUSES.has(place.kind) && place.floor === null;
}

// The name of a building stands above its north wall, once; a polygon's label would be set per tile.
function names(places: Places): FeatureCollection {
  const named = [...places.byPath.values()].filter(
    (place) => place.kind === "building" || standsAlone(place),
  );
  return {
    type: "FeatureCollection",
    features: named.flatMap((place): Feature[] => {
      const box = places.box(place.path);
      if (box === null) return [];
      const at = [(box[0] + box[2]) / 2, box[3]];
      return [
        {
          type: "Feature",
          geometry: { type: "Point", coordinates: at },
          properties: { label: place.name },
        },
      ];
    }),
  };
}

export function pictureStyle(): StyleSpecification {
  const places = state.places.peek();
  return style(state.theme.peek(), features(places, state.floor.peek()), names(places));
}

function circle([lon, lat]: Point, metres: number): Feature {
  const ring: number[][] = [];
  for (let n = 0; n <= CIRCLE; n++) {
    const turn = (2 * Math.PI * n) / CIRCLE;
    const across = METRES * Math.cos((lat * Math.PI) / 180);
    ring.push([lon + (metres * Math.cos(turn)) / across, lat + (metres * Math.sin(turn)) / METRES]);
  }
  return {
    type: "Feature",
    geometry: { type: "Polygon", coordinates: [ring] },
    properties: {},
  };
}

// The layer of dots of a map; it counts positions from near the map's centre.
export function layered(made: MapLibre): Dots {
  const layer = new Dots(dotColours(state.theme.peek()));
  layer.still = state.still;
  const recentre = () => {
    const at = MercatorCoordinate.fromLngLat(made.getCenter());
    layer.recentre(at.x, at.y);
  };
  recentre(); // a view that came with the address moves nowhere
  made.on("moveend", recentre);
  return layer;
}

// Draws pictures on a map: its dots, and how full its rooms are.
export function painter(
  made: MapLibre,
  layer: Dots,
): (picture: Picture, chosen: string | null) => void {
  let counts = new Map<string, number>();
  const forget = () => counts.clear(); // with its data a source forgets the state of its features
  made.on("style.load", forget);
  return ({ dots, counts: people }, chosen) => {
    layer.set(dots, chosen);
    for (const path of new Set([...counts.keys(), ...people.keys()])) {
      const count = people.get(path) ?? 0;
      if (count !== (counts.get(path) ?? 0)) {
        made.setFeatureState({ source: "places", id: path }, { people: count });
      }
    }
    counts = new Map(people);
  };
}

function begin(container: HTMLElement): () => void {
  const camera = state.camera.peek();
  const made = new MapLibre({
    container,
    style: pictureStyle(),
    center: camera ? [camera.lon, camera.lat] : [0, 20],
    zoom: camera?.zoom ?? 1,
    maxZoom: 23,
    pitchWithRotate: false,
    dragRotate: false,
    touchPitch: false,
    attributionControl: false,
    keyboard: true,
    fadeDuration: state.still ? 0 : 200,
  });
  map = made;
  made.touchZoomRotate.disableRotation();
  made.keyboard.disableRotation();
  made.addControl(new ScaleControl({ maxWidth: 90 }), "top-left"); // where neither legend nor tour covers it
  const canvas = made.getCanvas();
  canvas.setAttribute("aria-label", "Map. The list has the same objects.");
  const layer = layered(made);
  const painted = painter(made, layer);
  let placed = camera !== null; // whether the view was chosen already

  const addDots = () => {
    if (made.getLayer(layer.id)) return;
    try {
      made.addLayer(layer, NAMES);
    } catch (error) {
      failed.value = String(error);
      return;
    }
    paint();
  };

  const paint = () => painted(state.picture.peek(), state.chosen.peek());

  made.on("style.load", addDots);
  made.on("moveend", () => {
    const { lng, lat } = made.getCenter();
    if (placed) state.camera.value = { zoom: made.getZoom(), lat, lon: lng };
  });
  made.on("dragstart", () => {
    state.following.value = false;
  });
  made.on("click", ({ lngLat }) => {
    if (you.placing.value) {
      you.placing.value = false;
      const path = you.placeAt(lngLat.lng, lngLat.lat);
      if (path !== null) void you.stand(path, [lngLat.lng, lngLat.lat]);
      state.sheet.value = true;
      return;
    }
    const at = MercatorCoordinate.fromLngLat(lngLat);
    const reach = REACH_PX / (512 * 2 ** made.getZoom());
    state.choose(layer.nearest(at.x, at.y, reach));
  });
  made.on("mousemove", ({ lngLat, point }) => {
    const at = MercatorCoordinate.fromLngLat(lngLat);
    const reach = REACH_PX / (512 * 2 ** made.getZoom());
    const vid = layer.nearest(at.x, at.y, reach);
    canvas.style.cursor = vid ? "pointer" : "";
    const place = vid ? null : you.placeAt(lngLat.lng, lngLat.lat);
    pointAt(vid, place, point, container.clientWidth);
  });
  made.on("mouseout", () => {
    pointAt(null, null);
  });

  let themed = state.theme.peek();
  let looked: string | null = null;
  const stops = [
    effect(() => {
      const theme = state.theme.value;
      if (theme === themed) return;
      themed = theme;
      layer.colours = dotColours(theme);
      made.setStyle(pictureStyle(), { diff: false });
    }),
    effect(() => {
      const data = features(state.places.value, state.floor.value);
      (made.getSource("places") as GeoJSONSource | undefined)?.setData(data);
      (made.getSource("names") as GeoJSONSource | undefined)?.setData(names(state.places.value));
    }),
    effect(() => {
      state.picture.value;
      state.chosen.value;
      if (made.getLayer(layer.id)) paint();
      if (!placed && (state.places.value.byPath.size > 0 || state.complete.value)) {
        placed = state.picture.value.points.size > 0 || state.places.value.byPath.size > 0;
        if (placed) fitAll(false);
      }
    }),
    effect(() => {
      // another question was answered, and all of the answer is elsewhere: go and see it
      const filter = state.answered.value;
      const points = [...state.picture.value.points.values()];
      if (filter === looked) return;
      const first = looked === null;
      looked = filter;
      const inner = free(container);
      const { clientWidth: wide, clientHeight: high } = container;
      const seen = points.some((point) => {
        const { x, y } = made.project(point);
        return x > inner.left && x < wide - inner.right && y > inner.top && y < high - inner.bottom;
      });
      if (!first && points.length > 0 && !seen) fitAll();
    }),
    effect(() => {
      const to = state.goTo.value;
      if (to) made.jumpTo({ center: [to.lon, to.lat], zoom: to.zoom });
    }),
    effect(() => {
      layer.fade = state.connection.value === "open" ? 1 : 0.45;
      made.triggerRepaint();
    }),
    effect(() => {
      const trail = state.trail.value;
      (made.getSource("trail") as GeoJSONSource | undefined)?.setData({
        type: "Feature",
        geometry: { type: "LineString", coordinates: trail.length > 1 ? trail : [] },
        properties: {},
      });
    }),
    effect(() => {
      const [path, at, metres] = around.value;
      if (!made.getLayer("chosen-place")) return;
      const filter: FilterSpecification = ["==", ["get", "path"], path];
      made.setFilter("chosen-place", filter);
      (made.getSource("accuracy") as GeoJSONSource).setData({
        type: "FeatureCollection",
        features: at && metres ? [circle(at, metres)] : [],
      });
      if (at && state.following.value) {
        if (state.still) made.jumpTo({ center: at });
        else made.easeTo({ center: at, duration: 600 });
      }
    }),
  ];
  return () => {
    for (const stop of stops) stop();
    made.remove();
    map = null;
  };
}

type Around = [path: string, at: Point | null, metres: number];
let aroundLast: Around = ["", null, 0];

// What is drawn around the chosen object; the same value while it is the same, so that the changes of
// others redraw nothing.
const around = computed<Around>(() => {
  const object = state.chosenObject.value;
  const at = (object && state.picture.value.points.get(object.vid)) ?? null;
  const exact = object !== null && pointOf(object, state.places.value) !== null;
  const metres = exact ? Number(object.attributes.accuracy_m) || 0 : 0;
  // while you look into the mirror: where others would see you
  const image = state.tab.value === "you" ? you.images.value?.[0]?.theirs : undefined;
  const place = image ? String(image.properties.place ?? "") : (object?.place ?? null);
  const path = state.places.value.nearest(place)?.path ?? "";
  const [lastPath, lastAt, lastMetres] = aroundLast;
  const same = path === lastPath && metres === lastMetres && at?.join() === lastAt?.join();
  if (!same) aroundLast = [path, at, metres];
  return aroundLast;
});

export function MapView({ children }: { children: ComponentChildren }) {
  const holder = useRef<HTMLDivElement>(null);
  useEffect(() => {
    try {
      return begin(holder.current as HTMLElement);
    } catch (error) {
      // without WebGL the list still works
      failed.value = error instanceof Error ? error.message : String(error);
      return undefined;
    }
  }, []);
  return (
    <section class="map" aria-label="Map">
      <div class="canvas" ref={holder} />
      {failed.value && (
        <p class="map-failed" role="alert">
          The map can not be drawn: this browser offers no WebGL 2. The list has the same objects.
        </p>
      )}
      <div class="map-tools">
        <div class="tool-group">
          <button type="button" title="Zoom in" aria-label="Zoom in" onClick={() => map?.zoomIn()}>
            <PlusIcon />
          </button>
          <button
            type="button"
            title="Zoom out"
            aria-label="Zoom out"
            onClick={() => map?.zoomOut()}
          >
            <MinusIcon />
          </button>
          <button type="button" title="Fit all" aria-label="Fit all" onClick={() => fitAll()}>
            <FitIcon />
          </button>
        </div>
        <FloorPicker />
      </div>
      <Past />
      {children}
      <Tip />
      <Legend />
    </section>
  );
}

export function FloorPicker() {
  const floors = state.places.value.floors;
  if (floors.length < 2) return null;
  return (
    <fieldset class="floors">
      <legend class="unseen">Floor</legend>
      {[...floors].reverse().map((floor) => (
        <label key={floor.level} class={floor.level === state.floor.value ? "on" : ""}>
          <input
            type="radio"
            name="floor"
            value={floor.level}
            checked={floor.level === state.floor.value}
            onChange={() => {
              state.floor.value = floor.level;
            }}
          />
          <span class="unseen">Floor </span>
          {floor.name}
        </label>
      ))}
    </fieldset>
  );
}
