// The map's colours and style. No tiles, no glyphs, no sprites: everything drawn comes from the service
// itself, and labels use the machine's own fonts.

import type { FeatureCollection } from "geojson";
import type { LayerSpecification, StyleSpecification } from "maplibre-gl";
import type { Colours } from "./dots.ts";
import type { Theme } from "./state.ts";

type Palette = {
  ground: string;
  yard: string;
  building: string;
  corridor: string;
  room: string;
  some: string;
  full: string;
  wall: string;
  outline: string;
  text: string;
  halo: string;
  accent: string;
  person: string;
  thing: string;
  edge: string;
};

const PALETTES: Record<Theme, Palette> = {
  light: {
    ground: "#eceff1",
    yard: "#e3e8e6",
    building: "#f8faf9",
    corridor: "#f1f4f3",
    room: "#fdfefe",
    some: "#e0f2ee",
    full: "#6fbfb2",
    wall: "#c9d2d0",
    outline: "#94a3a0",
    text: "#46524f",
    halo: "#fbfdfc",
    accent: "#0f766e",
    person: "#0f766e",
    thing: "#475569",
    edge: "#ffffff",
  },
  dark: {
    ground: "#10161a",
    yard: "#141c20",
    building: "#1a2429",
    corridor: "#1e292e",
    room: "#222e34",
    some: "#1d3b3c",
    full: "#1f7a70",
    wall: "#36454c",
    outline: "#52646c",
    text: "#b4c2c6",
    halo: "#141c20",
    accent: "#2dd4bf",
    person: "#2dd4bf",
    thing: "#cbd5e1",
    edge: "#10161a",
  },
};

export const NAMES = "room-names"; // dots are drawn below it, so that numbers of full rooms can be read

export function dotColours(theme: Theme): Colours {
  const { person, thing, edge, accent } = PALETTES[theme];
  return { person: rgba(person), thing: rgba(thing), edge: rgba(edge), chosen: rgba(accent) };
}

function rgba(hex: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16) / 255).concat(1);
}

const EMPTY = { type: "FeatureCollection" as const, features: [] };

export function style(
  theme: Theme,
  data: FeatureCollection,
  names: FeatureCollection,
): StyleSpecification {
  const c = PALETTES[theme];
  const people = ["coalesce", ["feature-state", "people"], 0] as const;
  const layers: LayerSpecification[] = [
    { id: "ground", type: "background", paint: { "background-color": c.ground } },
    {
      id: "yards",
      type: "fill",
      source: "places",
      filter: ["in", ["get", "kind"], ["literal", ["campus", "venue", "yard"]]],
      paint: { "fill-color": c.yard },
    },
    {
      id: "buildings",
      type: "fill",
      source: "places",
      filter: ["==", ["get", "kind"], "building"],
      paint: { "fill-color": c.building },
    },
    {
      id: "rooms",
      type: "fill",
      source: "places",
      filter: ["==", ["get", "room"], true],
      paint: {
        "fill-color": [
          "interpolate",
          ["linear"],
          people as never,
          0,
          ["case", ["==", ["get", "kind"], "corridor"], c.corridor, c.room] as never,
          1,
          c.some,
          10,
          c.full,
        ],
      },
    },
    {
      id: "walls",
      type: "line",
      source: "places",
      filter: ["==", ["get", "room"], true],
      paint: {
        "line-color": c.wall,
        "line-width": ["interpolate", ["linear"], ["zoom"], 15, 0.2, 17, 0.6, 20, 1.4],
      },
    },
    {
      id: "outlines",
      type: "line",
      source: "places",
      filter: ["in", ["get", "kind"], ["literal", ["building", "hall", "lab"]]],
      paint: { "line-color": c.outline, "line-width": 1.6 },
    },
    {
      id: "chosen-place",
      type: "line",
      source: "places",
      filter: ["==", ["get", "path"], ""],
      paint: { "line-color": c.accent, "line-width": 2.5 },
    },
    {
      id: "accuracy-fill",
      type: "fill",
      source: "accuracy",
      paint: { "fill-color": c.accent, "fill-opacity": 0.12 },
    },
    {
      id: "accuracy-line",
      type: "line",
      source: "accuracy",
      paint: { "line-color": c.accent, "line-width": 1, "line-opacity": 0.6 },
    },
    {
      id: "trail",
      type: "line",
      source: "trail",
      layout: { "line-cap": "round", "line-join": "round" },
      paint: { "line-color": c.accent, "line-width": 2.5, "line-opacity": 0.55 },
    },
    {
      id: NAMES,
      type: "symbol",
      source: "places",
      minzoom: 18.6,
      filter: ["==", ["get", "room"], true],
      layout: {
        "text-field": ["get", "label"],
        "text-font": ["sans-serif"],
        "text-size": 11,
        "text-padding": 1,
      },
      paint: { "text-color": c.text, "text-halo-color": c.halo, "text-halo-width": 1.2 },
    },
    {
      id: "building-names",
      type: "symbol",
      source: "names",
      layout: {
        "text-field": ["get", "label"],
        "text-font": ["sans-serif"],
        "text-size": 13,
        "text-anchor": "bottom",
        "text-offset": [0, -0.25],
      },
      paint: { "text-color": c.text, "text-halo-color": c.halo, "text-halo-width": 1.5 },
    },
  ];
  return {
    version: 8,
    sources: {
      places: { type: "geojson", data, promoteId: "path" },
      trail: { type: "geojson", data: EMPTY },
      accuracy: { type: "geojson", data: EMPTY },
      names: { type: "geojson", data: names },
    },
    layers,
  };
}
