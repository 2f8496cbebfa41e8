// Views that somebody saved under a name: the fragment of the address, which has no token. They stay
// in this browser.

export type Saved = { name: string; fragment: string };

export const SAVED_MAX = 50;
const KEPT = "roamcast.views";

export function savedViews(storage: Pick<Storage, "getItem">): Saved[] {
  try {
    const read: unknown = JSON.parse(storage.getItem(KEPT) ?? "[]");
    if (!Array.isArray(read)) return [];
    return read
      .filter((one) => typeof one?.name === "string" && typeof one?.fragment === "string")
      .map(({ name, fragment }) => ({ name, fragment }))
      .slice(0, SAVED_MAX);
  } catch {
    return []; // somebody else's, or damaged: no view is better than no page
  }
}

export function withView(views: Saved[], name: string, fragment: string): Saved[] {
  const clean = new URLSearchParams(fragment.replace(/^#/, ""));
  clean.delete("token");
  const others = views.filter((one) => one.name !== name);
  return [{ name, fragment: `#${clean}` }, ...others].slice(0, SAVED_MAX);
}

export function withoutView(views: Saved[], name: string): Saved[] {
  return views.filter((one) => one.name !== name);
}

export function keepViews(storage: Pick<Storage, "setItem">, views: Saved[]): void {
  storage.setItem(KEPT, JSON.stringify(views));
}
