// The peer of the map page: the same objects from the same session, drawn by a circle layer over a
// GeoJSON source. ?way=setData | updateData; ?way=empty draws nothing, as often as the browser lets it.
import { Map as MapLibre, setWorkerUrl } from "/maplibre/maplibre-gl.mjs";

setWorkerUrl("/maplibre/maplibre-gl-worker.mjs");
const given = new URLSearchParams(location.search);
const way = given.get("way");
const map = new MapLibre({
  container: "map",
  style: { version: 8, sources: {}, layers: [{ id: "ground", type: "background", paint: { "background-color": "#eef" } }] },
  center: given.get("center").split(",").map(Number),
  zoom: Number(given.get("zoom")),
  attributionControl: false,
});
window.applied = 0;

function feature(one) {
  return { type: "Feature", id: one.id, geometry: one.geometry, properties: { vid: one.id } };
}

map.on("load", () => {
  window.ready = true;
  if (way === "empty") {
    const again = () => {
      map.triggerRepaint();
      requestAnimationFrame(again);
    };
    again();
    return;
  }
  const objects = new Map();
  map.addSource("dots", { type: "geojson", data: { type: "FeatureCollection", features: [] }, promoteId: "vid" });
  map.addLayer({ id: "dots", type: "circle", source: "dots", paint: { "circle-radius": 4, "circle-color": "#036" } });
  let changed = [];
  let ordered = false;
  const draw = () => {
    ordered = false;
    const source = map.getSource("dots");
    if (way === "setData") source.setData({ type: "FeatureCollection", features: [...objects.values()] });
    else source.updateData({ add: changed }); // an id that is there already is replaced
    changed = [];
  };
  const line = new WebSocket(given.get("session"), ["roamcast.json.v1", `roamcast.token.${given.get("token")}`]);
  line.onmessage = ({ data }) => {
    const told = JSON.parse(data);
    if (told.type === "welcome") line.send(JSON.stringify({ type: "subscribe", re: "view", filter: "true" }));
    const found = told.type === "subscribed" ? told.features : told.type === "changes" ? told.events.map((one) => one.data) : [];
    for (const one of found) {
      if (!one) continue;
      objects.set(one.id, feature(one));
      changed.push(objects.get(one.id));
      window.applied++;
    }
    if (changed.length && !ordered) {
      ordered = true;
      requestAnimationFrame(draw);
    }
  };
});
