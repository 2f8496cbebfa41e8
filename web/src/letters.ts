// Opening mail in the browser: HPKE to the key of a vid, and the letter inside (identity/sealing.py,
// identity/letters.py). The trusted node that forwards it can not read it.

import { Chacha20Poly1305 } from "@hpke/chacha20poly1305";
import { CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core";

export type Letter = {
  payload: Uint8Array;
  mediaType: string;
  sentMs: number;
  expiresMs: number;
  reason: string;
};

const MARK = "roamcast letter 1\n";
const KEM_BYTES = 32;
const encoder = new TextEncoder();
const suite = new CipherSuite({
  kem: new DhkemX25519HkdfSha256(),
  kdf: new HkdfSha256(),
  aead: new Chacha20Poly1305(),
});

export async function openLetter(
  sealed: Uint8Array,
  seed: Uint8Array,
  cast: string,
  vid: string,
): Promise<Letter> {
  const own = await expanded(seed, "roamcast vid x25519");
  const recipientKey = await suite.kem.importKey("raw", own.buffer as ArrayBuffer, false);
  const padded = new Uint8Array(
    await suite.open(
      {
        recipientKey,
        enc: copied(sealed.subarray(0, KEM_BYTES)),
        info: copied(concat(encoder.encode("roamcast mail 1\n"), packedTexts(cast, vid))),
      },
      copied(sealed.subarray(KEM_BYTES)),
    ),
  );
  const length = new DataView(padded.buffer).getUint32(0);
  if (length > padded.length - 4) throw new Error("this mail says that it is longer than it is");
  return readLetter(padded.subarray(4, 4 + length));
}

export function readLetter(opened: Uint8Array): Letter {
  const mark = encoder.encode(MARK);
  const plain = { payload: opened, mediaType: "text/plain", sentMs: 0, expiresMs: 0, reason: "" };
  if (!mark.every((byte, at) => opened[at] === byte)) return plain;
  const [payload, mediaType, sent, expires, reason] = unpack(opened.subarray(mark.length));
  if (!(payload instanceof Uint8Array)) return plain;
  return {
    payload,
    mediaType: String(mediaType ?? "text/plain"),
    sentMs: Number(sent ?? 0) / 1000,
    expiresMs: Number(expires ?? 0) / 1000,
    reason: String(reason ?? ""),
  };
}

// HKDF-Expand of one block (RFC 5869): the seed is the key already.
async function expanded(seed: Uint8Array, label: string): Promise<Uint8Array> {
  const key = await crypto.subtle.importKey(
    "raw",
    copied(seed),
    { name: "HMAC", hash: "SHA-256" },
    false,
    ["sign"],
  );
  const block = concat(encoder.encode(label), Uint8Array.of(1));
  return new Uint8Array(await crypto.subtle.sign("HMAC", key, copied(block)));
}

// MessagePack of two texts, as the seal binds them.
function packedTexts(...texts: string[]): Uint8Array {
  const parts = texts.map((text) => {
    const bytes = encoder.encode(text);
    const n = bytes.length;
    const head = n < 32 ? [0xa0 | n] : n < 256 ? [0xd9, n] : [0xda, n >> 8, n & 255];
    return concat(Uint8Array.from(head), bytes);
  });
  return parts.reduce(concat, Uint8Array.of(0x90 | texts.length));
}

// As much of MessagePack as letters and credentials have: an array of bytes, texts, numbers and arrays.
export function unpack(data: Uint8Array): unknown[] {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let at = 0;
  const bytes = (n: number) => {
    at += n;
    return data.subarray(at - n, at);
  };
  const number = (n: 1 | 2 | 4): number => {
    const found = n === 1 ? view.getUint8(at) : n === 2 ? view.getUint16(at) : view.getUint32(at);
    at += n;
    return found;
  };
  const list = (n: number): unknown[] => Array.from({ length: n }, next);
  const text = (n: number) => new TextDecoder().decode(bytes(n));
  function next(): unknown {
    const kind = number(1);
    if (kind < 0x80) return kind;
    if (kind >= 0xe0) return kind - 256;
    if (kind >= 0x90 && kind < 0xa0) return list(kind & 15);
    if (kind >= 0xa0 && kind < 0xc0) return text(kind & 31);
    switch (kind) {
      case 0xc0:
        return null;
      case 0xc4:
        return bytes(number(1));
      case 0xc5:
        return bytes(number(2));
      case 0xc6:
        return bytes(number(4));
      case 0xcc:
        return number(1);
      case 0xcd:
        return number(2);
      case 0xce:
        return number(4);
      case 0xcf:
      case 0xd3:
        at += 8;
        return Number(view.getBigInt64(at - 8));
      case 0xd9:
        return text(number(1));
      case 0xda:
        return text(number(2));
      case 0xdb:
        return text(number(4));
      case 0xdc:
        return list(number(2));
      default:
        throw new Error(`a letter has no ${kind.toString(16)}`);
    }
  }
  const read = next();
  return Array.isArray(read) ? read : [];
}

// The vid that a credential vouches for: a signature of 64 bytes, then the credential.
export function vidOf(credential: string): string {
  const body = credential
    .replace(/^vid1\./, "")
    .replaceAll("-", "+")
    .replaceAll("_", "/");
  return String(unpack(base64(body).subarray(64))[0]);
}

export function base64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function concat(a: Uint8Array, b: Uint8Array): Uint8Array {
  const out = new Uint8Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
}

function copied(bytes: Uint8Array): ArrayBuffer {
  return bytes.slice().buffer as ArrayBuffer;
}
