// The dots: a custom layer that moves them on the graphics card. A change writes one slot (from, to,
// begin); between changes nothing is computed here, however many dots move.
//
// Positions are Mercator relative to an origin near the view, and the matrix is translated to it in
// float64: plain float32 Mercator would be metres off.

import type { CustomLayerInterface, CustomRenderMethodInput, Map as MapLibre } from "maplibre-gl";

export type Dot = {
  x: number; // Mercator, 0 to 1
  y: number;
  thing: boolean; // a diamond, not a disc
  known: "point" | "place" | "area"; // filled, hollow, or large and faint
  shown: boolean;
};

export type Colours = { person: number[]; thing: number[]; edge: number[]; chosen: number[] };

const STRIDE = 6; // from x, y; to x, y; begin; look
const MOVE_S = 0.9;
const FAR = 1 / 4096; // of the world: 10 km
const SIZE_PX = 15;
const CROWDED_PX = 8; // no smaller in a crowd
const CROWD = 200; // fewer dots are no crowd, however near they are

// What a dot looks like follows from its vertex alone: a fragment shader that decides nothing is what
// lets thousands of dots be drawn without a graphics card. Two shapes in one another: `outer` as far
// as the first radius, `inner` as far as the second.
const VERTEX = `#version 300 es
uniform mat4 u_matrix; uniform float u_now; uniform float u_move; uniform float u_size;
uniform float u_ratio; uniform float u_ring; uniform float u_fade;
uniform vec4 u_person; uniform vec4 u_thing; uniform vec4 u_edge; uniform vec4 u_chosen;
in vec2 a_from; in vec2 a_to; in float a_begin; in float a_look;
flat out vec4 v_outer; flat out vec4 v_inner; flat out vec4 v_shape;
void main() {
  int look = int(a_look);
  int known = (look & 6) >> 1;
  float t = u_move <= 0.0 ? 1.0 : clamp((u_now - a_begin) / u_move, 0.0, 1.0);
  t = t * t * (3.0 - 2.0 * t);
  gl_Position = u_matrix * vec4(mix(a_from, a_to, t), 0.0, 1.0);
  if ((look & 8) == 0) gl_Position = vec4(2.0, 2.0, 2.0, 1.0); // not shown
  float thing = float(look & 1);
  vec4 base = thing > 0.0 ? u_thing : u_person;
  float edge = 1.4 * u_ratio;
  float size = u_size * (known == 2 ? 1.5 : 1.0);
  float r = 0.46 * u_size;
  if (u_ring > 0.0) {
    thing = 0.0;
    size = 2.0 * u_size;
    r = 0.46 * size;
    v_outer = u_chosen;
    v_inner = vec4(0.0);
    v_shape = vec4(size, thing, r, r - 2.4 * u_ratio);
  } else if (known == 0) {
    v_outer = u_edge;
    v_inner = base;
    v_shape = vec4(size, thing, r, r - edge);
  } else if (known == 1) {
    v_outer = base;
    v_inner = u_edge;
    v_shape = vec4(size, thing, r - 0.7 * edge, r - 0.7 * edge - max(2.0 * u_ratio, 0.2 * u_size));
  } else {
    v_outer = v_inner = base * 0.28;
    v_shape = vec4(size, thing, 0.7 * u_size, 0.0);
  }
  v_outer *= u_fade;
  v_inner *= u_fade;
  v_shape.zw += 0.5 * u_ratio;
  gl_PointSize = size;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
uniform float u_ratio;
flat in vec4 v_outer; flat in vec4 v_inner; flat in vec4 v_shape;
out vec4 colour;
void main() {
  vec2 p = abs(gl_PointCoord - 0.5) * v_shape.x;
  float d = mix(length(p), (p.x + p.y) * 0.8, v_shape.y);
  vec2 within = clamp((v_shape.zw - d) / u_ratio, 0.0, 1.0); // soft over one pixel
  colour = mix(v_outer, v_inner, within.y) * within.x;
}`;

export class Dots implements CustomLayerInterface {
  readonly id = "dots";
  readonly type = "custom" as const;
  readonly renderingMode = "2d" as const;
  fade = 1;
  still = false; // reduced motion
  colours: Colours;

  #map: MapLibre | null = null;
  #gl: WebGL2RenderingContext | null = null;
  #program: WebGLProgram | null = null;
  #buffer: WebGLBuffer | null = null;
  #array: WebGLVertexArrayObject | null = null;
  #uniforms = new Map<string, WebGLUniformLocation | null>();
  #data = new Float32Array(STRIDE * 256);
  #slots = new Map<string, number>();
  #dots = new Map<string, Dot>();
  #free: number[] = [];
  #used = 0;
  #origin: [number, number] = [0, 0];
  #dirty = true;
  #grown = true;
  #movingUntil = 0;
  #apart = 0;
  #chosen: string | null = null;
  readonly #began = performance.now();

  constructor(colours: Colours) {
    this.colours = colours;
  }

  get size(): number {
    return this.#slots.size;
  }

  get(vid: string): Dot | undefined {
    return this.#dots.get(vid);
  }

  // Give the whole picture: who is not in it goes, who has moved moves there.
  set(dots: Map<string, Dot>, chosen: string | null): void {
    for (const vid of this.#slots.keys()) if (!dots.has(vid)) this.#remove(vid);
    for (const [vid, dot] of dots) {
      const known = this.#dots.get(vid);
      if (known === undefined || !same(known, dot)) this.#put(vid, dot, known);
    }
    this.#apart = apart(dots.values());
    if (this.#dirty || this.#chosen !== chosen) this.#map?.triggerRepaint();
    this.#chosen = chosen;
  }

  // The nearest dot within some pixels of a point of the map.
  nearest(x: number, y: number, reach: number): string | null {
    let best: string | null = null;
    let most = reach * reach;
    for (const [vid, dot] of this.#dots) {
      if (!dot.shown) continue;
      const distance = (dot.x - x) ** 2 + (dot.y - y) ** 2;
      if (distance <= most) {
        most = distance;
        best = vid;
      }
    }
    return best;
  }

  onAdd(map: MapLibre, gl: WebGL2RenderingContext): void {
    this.#map = map;
    this.#gl = gl;
    const program = gl.createProgram();
    for (const [kind, source] of [
      [gl.VERTEX_SHADER, VERTEX],
      [gl.FRAGMENT_SHADER, FRAGMENT],
    ] as const) {
      const shader = gl.createShader(kind);
      if (shader === null) throw new Error("no shader: the WebGL context is lost");
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) {
      throw new Error(`the dots' shader does not link: ${gl.getProgramInfoLog(program)}`);
    }
    this.#program = program;
    this.#buffer = gl.createBuffer();
    this.#array = gl.createVertexArray();
    gl.bindVertexArray(this.#array);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.#buffer);
    let offset = 0;
    for (const [name, size] of [
      ["a_from", 2],
      ["a_to", 2],
      ["a_begin", 1],
      ["a_look", 1],
    ] as const) {
      const at = gl.getAttribLocation(program, name);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, size, gl.FLOAT, false, STRIDE * 4, offset * 4);
      offset += size;
    }
    gl.bindVertexArray(null);
    this.#uniforms.clear();
    this.#dirty = this.#grown = true;
  }

  onRemove(_map: MapLibre, gl: WebGL2RenderingContext): void {
    gl.deleteBuffer(this.#buffer);
    gl.deleteVertexArray(this.#array);
    gl.deleteProgram(this.#program);
    this.#program = null;
  }

  render(gl: WebGL2RenderingContext, { defaultProjectionData }: CustomRenderMethodInput): void {
    if (this.#program === null || this.#used === 0) return;
    const now = this.#now();
    gl.useProgram(this.#program);
    gl.bindVertexArray(this.#array);
    if (this.#dirty) {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.#buffer);
      if (this.#grown) gl.bufferData(gl.ARRAY_BUFFER, this.#data, gl.DYNAMIC_DRAW);
      else gl.bufferSubData(gl.ARRAY_BUFFER, 0, this.#data, 0, this.#used * STRIDE);
      this.#dirty = this.#grown = false;
    }
    const matrix = moved(defaultProjectionData.mainMatrix, this.#origin);
    gl.uniformMatrix4fv(this.#uniform("u_matrix"), false, matrix);
    gl.uniform1f(this.#uniform("u_now"), now);
    gl.uniform1f(this.#uniform("u_move"), this.still ? 0 : MOVE_S);
    gl.uniform1f(this.#uniform("u_size"), this.#pixels());
    gl.uniform1f(this.#uniform("u_ratio"), globalThis.devicePixelRatio || 1);
    gl.uniform1f(this.#uniform("u_fade"), this.fade);
    gl.uniform4fv(this.#uniform("u_person"), this.colours.person);
    gl.uniform4fv(this.#uniform("u_thing"), this.colours.thing);
    gl.uniform4fv(this.#uniform("u_edge"), this.colours.edge);
    gl.uniform4fv(this.#uniform("u_chosen"), this.colours.chosen);
    gl.uniform1f(this.#uniform("u_ring"), 0);
    gl.drawArrays(gl.POINTS, 0, this.#used);
    const chosen = this.#slots.get(this.#chosen ?? "");
    if (chosen !== undefined) {
      gl.uniform1f(this.#uniform("u_ring"), 1);
      gl.drawArrays(gl.POINTS, chosen, 1);
    }
    gl.bindVertexArray(null);
    if (!this.still && now < this.#movingUntil) this.#map?.triggerRepaint();
  }

  // Keep the origin near what is looked at; call when the camera has come to rest.
  recentre(x: number, y: number): void {
    const [ox, oy] = this.#origin;
    if (Math.abs(x - ox) < FAR && Math.abs(y - oy) < FAR) return;
    this.#origin = [x, y];
    for (const [vid, slot] of this.#slots) {
      const dot = this.#dots.get(vid) as Dot;
      const at = slot * STRIDE;
      this.#data[at] = this.#data[at + 2] = dot.x - x;
      this.#data[at + 1] = this.#data[at + 3] = dot.y - y;
    }
    this.#dirty = true;
    this.#map?.triggerRepaint();
  }

  #put(vid: string, dot: Dot, known: Dot | undefined): void {
    const now = this.#now();
    const slot = this.#slots.get(vid) ?? this.#take(vid);
    const at = slot * STRIDE;
    const data = this.#data;
    const [x, y] = [dot.x - this.#origin[0], dot.y - this.#origin[1]];
    const moves = known !== undefined && (known.x !== dot.x || known.y !== dot.y);
    if (known === undefined) {
      data[at] = data[at + 2] = x;
      data[at + 1] = data[at + 3] = y;
      data[at + 4] = now - MOVE_S;
    } else if (moves) {
      // it sets out from where it is drawn now, so that a change on the way does not make it jump
      const t = Math.min(1, Math.max(0, (now - (data[at + 4] as number)) / MOVE_S));
      const eased = this.still ? 1 : t * t * (3 - 2 * t);
      for (const [k, to] of [x, y].entries()) {
        const [from, goal] = [data[at + k] as number, data[at + k + 2] as number];
        data[at + k] = from + (goal - from) * eased;
        data[at + k + 2] = to;
      }
      data[at + 4] = now;
      this.#movingUntil = now + MOVE_S;
    }
    data[at + 5] = look(dot);
    this.#dots.set(vid, dot);
    this.#dirty = true;
  }

  #take(vid: string): number {
    const slot = this.#free.pop() ?? this.#used++;
    if (this.#used * STRIDE > this.#data.length) {
      const larger = new Float32Array(this.#data.length * 2);
      larger.set(this.#data);
      this.#data = larger;
      this.#grown = true;
    }
    this.#slots.set(vid, slot);
    return slot;
  }

  #remove(vid: string): void {
    const slot = this.#slots.get(vid) as number;
    this.#data[slot * STRIDE + 5] = 0;
    this.#slots.delete(vid);
    this.#dots.delete(vid);
    this.#free.push(slot);
    this.#dirty = true;
  }

  #pixels(): number {
    const zoom = this.#map?.getZoom() ?? 17;
    const grown = Math.min(1.3, Math.max(0.55, 0.62 + (zoom - 16) * 0.17));
    const room = Math.max(CROWDED_PX, 1.2 * this.#apart * 512 * 2 ** zoom);
    return Math.min(SIZE_PX * grown, room) * (globalThis.devicePixelRatio || 1);
  }

  #uniform(name: string): WebGLUniformLocation | null {
    let found = this.#uniforms.get(name);
    if (found === undefined) {
      found = this.#gl?.getUniformLocation(this.#program as WebGLProgram, name) ?? null;
      this.#uniforms.set(name, found);
    }
    return found;
  }

  #now(): number {
    return (performance.now() - this.#began) / 1000;
  }
}

function look(dot: Dot): number {
  const known = dot.known === "point" ? 0 : dot.known === "place" ? 1 : 2;
  return (dot.thing ? 1 : 0) | (known << 1) | (dot.shown ? 8 : 0);
}

// How far apart the dots of a crowd are, if they fill the box around them evenly: they are drawn
// smaller, so that people can be told apart.
export function apart(dots: Iterable<Dot>): number {
  let [count, left, right, top, bottom] = [0, 1, 0, 1, 0];
  for (const { x, y, shown } of dots) {
    if (!shown) continue;
    count++;
    left = Math.min(left, x);
    right = Math.max(right, x);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  }
  return count < CROWD ? 1 : Math.sqrt(((right - left) * (bottom - top)) / count);
}

function same(a: Dot, b: Dot): boolean {
  return (
    a.x === b.x && a.y === b.y && a.shown === b.shown && a.known === b.known && a.thing === b.thing
  );
}

function moved(matrix: ArrayLike<number>, [x, y]: [number, number]): Float32Array {
  const out = Float64Array.from(matrix);
  for (let row = 0; row < 4; row++) {
    out[12 + row] =
      (matrix[row] as number) * x + (matrix[4 + row] as number) * y + (matrix[12 + row] as number);
  }
  return Float32Array.from(out);
}
