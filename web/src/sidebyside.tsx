// Two maps side by side, as it was and as it would have been, with one time bar and one camera.

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals";
import { Map as MapLibre } from "maplibre-gl";
import { useEffect, useRef } from "preact/hooks";
import { PauseIcon, PlayIcon } from "./icons.tsx";
import { dotColours, NAMES } from "./look.ts";
import { FloorPicker, layered, painter, pictureStyle } from "./map.tsx";
import { type Seen, seen } from "./objects.ts";
import { draw } from "./picture.ts";
import type { Shown } from "./replay.ts";
import * as state from "./state.ts";
import * as whatif from "./whatif.tsx";
import { clock, offset } from "./when.ts";

const SPEEDS = [1, 2, 5, 10, 20];
const FRAME_MS = 200;

const speed = signal(5);
const playing = signal(false);
let timer = 0;
let played = 0;

function pause(): void {
  clearInterval(timer);
  playing.value = false;
}

function play(): void {
  if (whatif.atMs.value >= whatif.lengthMs.value) whatif.atMs.value = 0;
  playing.value = true;
  played = performance.now();
  clearInterval(timer);
  timer = window.setInterval(() => {
    const next = whatif.atMs.value + (performance.now() - played) * speed.value;
    played = performance.now();
    whatif.atMs.value = Math.min(next, whatif.lengthMs.value);
    if (next >= whatif.lengthMs.value) pause();
  }, FRAME_MS);
}

function objectsOf(shown: Shown | null): Seen[] {
  const features = whatif.answer.value?.features ?? [];
  return [...(shown ?? new Map<string, number>()).values()].flatMap((number) => {
    const feature = features[number];
    return feature ? [seen(feature, 0)] : [];
  });
}

const pictures = {
  was: computed(() => draw(objectsOf(whatif.was.value), state.places.value, state.floor.value)),
  would: computed(() => draw(objectsOf(whatif.would.value), state.places.value, state.floor.value)),
};

const maps = { was: whatif.was, would: whatif.would };

const twins = new Set<MapLibre>();

function begin(
  container: HTMLElement,
  name: string,
  picture: ReadonlySignal<ReturnType<typeof draw>>,
): () => void {
  const camera = state.camera.peek();
  const made = new MapLibre({
    container,
    style: pictureStyle(),
    center: camera ? [camera.lon, camera.lat] : [0, 20],
    zoom: camera ? camera.zoom - (container.clientWidth < innerWidth / 2 ? 1 : 0) : 1, // half as wide
    maxZoom: 23,
    pitchWithRotate: false,
    dragRotate: false,
    touchPitch: false,
    attributionControl: false,
    fadeDuration: 0,
  });
  twins.add(made);
  made.getCanvas().setAttribute("aria-label", `Map, ${name.toLowerCase()}`);
  made.touchZoomRotate.disableRotation();
  made.keyboard.disableRotation();
  const layer = layered(made);
  const paint = painter(made, layer);
  made.on("style.load", () => {
    made.addLayer(layer, NAMES);
    paint(picture.peek(), null);
  });
  // whichever is moved by hand takes the other along
  made.on("move", ({ originalEvent }) => {
    if (!originalEvent) return;
    for (const other of twins) {
      if (other !== made) other.jumpTo({ center: made.getCenter(), zoom: made.getZoom() });
    }
  });
  const whole = state.places.peek().box();
  const view = made.getBounds();
  const shown = [...pictures.was.peek().points.values()]; // for both maps, so that their cameras agree
  if (whole !== null && (camera === null || !shown.some((point) => view.contains(point)))) {
    made.fitBounds(whole, { padding: 20, animate: false });
  }
  const stops = [
    effect(() => {
      const next = picture.value;
      if (made.getLayer(layer.id)) paint(next, null);
    }),
    effect(() => {
      state.floor.value;
      layer.colours = dotColours(state.theme.value);
      made.setStyle(pictureStyle(), { diff: false });
    }),
  ];
  return () => {
    for (const stop of stops) stop();
    twins.delete(made);
    made.remove();
  };
}

function TwinMap({ side, name }: { side: "was" | "would"; name: string }) {
  const holder = useRef<HTMLDivElement>(null);
  const failed = useRef(false);
  useEffect(() => {
    try {
      return begin(holder.current as HTMLElement, name, pictures[side]);
    } catch {
      failed.current = true; // without WebGL the counts still stand beside it
      return undefined;
    }
  }, [side, name]);
  const shown = maps[side].value?.size ?? 0;
  return (
    <section class="map twin" aria-label={name}>
      <div class="canvas" ref={holder} />
      <p class="twin-name" data-shown={shown}>
        <b>{name}</b> {shown} {shown === 1 ? "object" : "objects"}
      </p>
      {side === "would" && (
        <div class="map-tools">
          <FloorPicker />
        </div>
      )}
    </section>
  );
}

export function SideBySide() {
  useEffect(() => pause, []);
  return (
    <>
      <div class="twins">
        <TwinMap side="was" name="As it was" />
        <TwinMap side="would" name="As it would have been" />
      </div>
      <ReplayBar />
    </>
  );
}

function ReplayBar() {
  const length = whatif.lengthMs.value;
  const at = whatif.atMs.value;
  const moment = Date.parse(whatif.answer.value?.from ?? "") + at;
  const thumb = length > 0 ? (100 * at) / length : 0;
  const count = whatif.different.value.length;
  return (
    <section class="time past" aria-label="Time of both maps">
      <button
        type="button"
        class="round"
        aria-label={playing.value ? "Pause" : "Play"}
        onClick={() => (playing.value ? pause() : play())}
      >
        {playing.value ? <PauseIcon /> : <PlayIcon />}
      </button>
      <label class="speed">
        <span class="unseen">Speed</span>
        <select
          value={String(speed.value)}
          onChange={({ currentTarget }) => {
            speed.value = Number(currentTarget.value);
          }}
        >
          {SPEEDS.map((times) => (
            <option key={times} value={times}>
              {times}×
            </option>
          ))}
        </select>
      </label>
      <div class="track">
        <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
          <rect x="0" width="100" y="3.5" height="3" class="whole" />
          <rect x="0" width={thumb} y="3.5" height="3" class="chosen" />
        </svg>
        <input
          type="range"
          aria-label="Moment of both maps"
          aria-valuetext={`${offset(at)} after the begin`}
          min={0}
          max={length}
          step={Math.max(1, Math.round(length / 1_000))}
          value={at}
          onInput={({ currentTarget }) => {
            pause();
            whatif.atMs.value = Number(currentTarget.value);
          }}
        />
        <span class="ends" aria-hidden="true">
          <span>0</span>
          <span>+{offset(length)}</span>
        </span>
      </div>
      <p class="moment" role="status">
        <b>{clock(moment, state.now.value)}</b>
        <small>{count === 0 ? "both the same" : `${count} different`}</small>
      </p>
      <button
        type="button"
        class="quiet"
        onClick={() => {
          pause();
          whatif.answer.value = null;
        }}
      >
        Back to now
      </button>
    </section>
  );
}
