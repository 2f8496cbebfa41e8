// Requests to the service: the token in a header, problems as errors that keep their position.

import type { PlaceFeature } from "./places.ts";

export class Problem extends Error {
  status: number;
  position: number | null;
  againMs: number; // when to try again, where the service says
  url: string; // who answers instead, where the service says

  constructor(
    status: number,
    detail: string,
    position: number | null = null,
    againMs = 0,
    url = "",
  ) {
    super(detail);
    this.status = status;
    this.position = position;
    this.againMs = againMs;
    this.url = url;
  }
}

export type Template = { name: string; filter: string; says: string; takes: string[] };

export class Api {
  readonly token: string;

  constructor(token: string) {
    this.token = token;
  }

  get<T>(path: string, query: Record<string, string> = {}): Promise<T> {
    const asked = new URLSearchParams(query).toString();
    return this.ask<T>("GET", asked ? `${path}?${asked}` : path);
  }

  async ask<T>(method: string, path: string, body?: unknown): Promise<T> {
    const headers: Record<string, string> = {
      Authorization: `Bearer ${this.token}`,
      Accept: "application/json",
    };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const sent = body === undefined ? null : JSON.stringify(body);
    const answer = await fetch(path, { method, headers, body: sent });
    const text = await answer.text();
    const read = text ? JSON.parse(text) : null;
    if (answer.ok) return read as T;
    const again = Number(answer.headers.get("Retry-After")) || 0;
    throw new Problem(
      answer.status,
      without(read?.detail ?? read?.title ?? `status ${answer.status}`),
      read?.position ?? null,
      again * 1000,
      read?.url ?? "",
    );
  }

  places(): Promise<{ features: PlaceFeature[] }> {
    return this.get("/places");
  }

  templates(): Promise<Template[]> {
    return this.get("/templates");
  }

  // Whether the service answers, and refuses this token. No answer is no refusal.
  async refused(): Promise<boolean> {
    try {
      await this.templates();
    } catch (error) {
      return error instanceof Problem && (error.status === 401 || error.status === 403);
    }
    return false;
  }
}

export type Grant = { subject: string; scopes: string[]; expiresMs: number };

// What a token says of itself; the service decides, the page only leaves out what would be refused.
export function granted(token: string): Grant {
  try {
    const body = (token.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/");
    const bytes = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
    const claims = JSON.parse(new TextDecoder().decode(bytes));
    const scopes: string[] = claims.scopes ?? [];
    const all = ["read", "publish", "subscribe", "cast", "admin"];
    return {
      subject: String(claims.sub),
      scopes: scopes.includes("admin") ? all : scopes,
      expiresMs: Number(claims.exp) * 1000,
    };
  } catch {
    return { subject: "", scopes: ["read", "subscribe"], expiresMs: 0 };
  }
}

const MOVED = 421;

// What to tell somebody of an error.
export function reasonOf(error: unknown): string {
  if (!(error instanceof Problem)) return "The service does not answer.";
  if (error.status !== MOVED) return error.message;
  return error.url
    ? `Another broker serves that place: open ${error.url} with your token, and stand there.`
    : "No broker that is known here serves that place.";
}

// The page shows the place of an error; its text need not name it as well.
export function without(detail: string): string {
  return detail.replace(/^position \d+: /, "");
}
