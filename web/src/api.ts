// Requests to the service: the token in a header, problems as errors that keep their position.

import type { PlaceFeature } from "./places.ts";

export class Problem extends Error {
  status: number;
  position: number | null;

  constructor(status: number, detail: string, position: number | null = null) {
    super(detail);
    this.status = status;
    this.position = position;
  }
}

export type Template = { name: string; filter: string; says: string; takes: string[] };

export class Api {
  readonly token: string;

  constructor(token: string) {
    this.token = token;
  }

  async get<T>(path: string, query: Record<string, string> = {}): Promise<T> {
    const asked = new URLSearchParams(query).toString();
    const answer = await fetch(asked ? `${path}?${asked}` : path, {
      headers: { Authorization: `Bearer ${this.token}`, Accept: "application/json" },
    });
    const body = await answer.json();
    if (answer.ok) return body as T;
    throw new Problem(answer.status, without(body.detail ?? body.title), body.position ?? null);
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

// The page shows the place of an error; its text need not name it as well.
export function without(detail: string): string {
  return detail.replace(/^position \d+: /, "");
}
