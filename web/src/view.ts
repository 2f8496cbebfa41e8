// The state of the view, in the fragment of the address: it can be shared and kept as a bookmark, and
// never reaches the service's log. The token has no field here.

export const TABS = ["list", "feed", "cast", "mail", "you", "network", "whatif"] as const;
export type Tab = (typeof TABS)[number];

export type View = {
  filter: string;
  object: string | null;
  floor: string | null;
  camera: { zoom: number; lat: number; lon: number } | null;
  tab: Tab;
};

export const EVERYTHING = "true";

const camera = /^(\d+(?:\.\d+)?)\/(-?\d+(?:\.\d+)?)\/(-?\d+(?:\.\d+)?)$/;

export function readView(fragment: string): View {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const found = camera.exec(given.get("map") ?? "");
  return {
    filter: given.get("filter") || EVERYTHING,
    object: given.get("object") || null,
    floor: given.get("floor") || null,
    camera: found ? { zoom: Number(found[1]), lat: Number(found[2]), lon: Number(found[3]) } : null,
    tab: TABS.find((name) => name === given.get("tab")) ?? "list",
  };
}

export function writeView(view: View): string {
  const out = new URLSearchParams();
  if (view.filter !== EVERYTHING) out.set("filter", view.filter);
  if (view.floor) out.set("floor", view.floor);
  if (view.tab !== "list") out.set("tab", view.tab);
  if (view.object) out.set("object", view.object);
  if (view.camera) {
    const { zoom, lat, lon } = view.camera;
    out.set("map", `${zoom.toFixed(2)}/${lat.toFixed(6)}/${lon.toFixed(6)}`);
  }
  const text = out.toString().replaceAll("%2F", "/");
  return text ? `#${text}` : "";
}

// A share link has its token in the fragment, which browsers send to nobody; the page takes it out of
// the address before anything else (decision 0191).
export function shareAddress(origin: string, token: string, fragment: string): string {
  const out = new URLSearchParams(fragment.replace(/^#/, ""));
  out.delete("tab");
  out.set("token", token);
  return `${origin}/#${out.toString().replaceAll("%2F", "/")}`;
}

export function sharedToken(fragment: string): string | null {
  return new URLSearchParams(fragment.replace(/^#/, "")).get("token") || null;
}
