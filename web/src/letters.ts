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
  receipt: Receipt | null; // null: not signed
};

// Who says that a pseudonym of the reader's satisfied the filter (decision 0185).
type Receipt = { node: string; key: Uint8Array; signature: Uint8Array };

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
        info: copied(concat(encoder.encode("roamcast mail 1\n"), packed([cast, vid]))),
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
  const plain: Letter = {
    payload: opened,
    mediaType: "text/plain",
    sentMs: 0,
    expiresMs: 0,
    reason: "",
    receipt: null,
  };
  if (!mark.every((byte, at) => opened[at] === byte)) return plain;
  const [payload, mediaType, sent, expires, reason, node, key, signature] = unpack(
    opened.subarray(mark.length),
  );
  if (!(payload instanceof Uint8Array)) return plain;
  return {
    payload,
    mediaType: String(mediaType ?? "text/plain"),
    sentMs: Number(sent ?? 0) / 1000,
    expiresMs: Number(expires ?? 0) / 1000,
    reason: String(reason ?? ""),
    receipt:
      key instanceof Uint8Array && signature instanceof Uint8Array && signature.length > 0
        ? { node: String(node), key, signature }
        : null,
  };
}

// Whether a receipt is signed by the key that it names, over everything that it says. Whose key that
// is, is another question.
export async function isSigned(
  letter: Letter,
  cast: string,
  vid: string,
  sender: string,
): Promise<boolean> {
  const { receipt } = letter;
  if (receipt === null || receipt.key.length !== 32) return false;
  const payload = new Uint8Array(await crypto.subtle.digest("SHA-256", copied(letter.payload)));
  const said = [cast, vid, sender, payload, letter.mediaType];
  const times = [letter.sentMs * 1000, letter.expiresMs * 1000].map(Math.round);
  const body = packed([...said, ...times, letter.reason, receipt.node]);
  const signed = concat(encoder.encode("roamcast receipt 1\n"), body);
  const key = await crypto.subtle.importKey("raw", copied(receipt.key), "Ed25519", false, [
    "verify",
  ]);
  return crypto.subtle.verify("Ed25519", key, copied(receipt.signature), copied(signed));
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

// MessagePack of texts, bytes and whole numbers, each in its shortest form, as seals and signatures
// bind them.
export function packed(values: (string | number | Uint8Array)[]): Uint8Array {
  const parts = values.map((value) => {
    if (typeof value === "number") return packedNumber(value);
    const text = typeof value === "string";
    const bytes = text ? encoder.encode(value) : value;
    const n = bytes.length;
    let head = [text ? 0xda : 0xc5, n >> 8, n & 255];
    if (n < 256) head = [text ? 0xd9 : 0xc4, n];
    if (n < 32 && text) head = [0xa0 | n];
    return concat(Uint8Array.from(head), bytes);
  });
  return parts.reduce(concat, Uint8Array.of(0x90 | values.length));
}

function packedNumber(value: number): Uint8Array {
  if (value < 0x80) return Uint8Array.of(value);
  const view = new DataView(new ArrayBuffer(9));
  view.setBigUint64(1, BigInt(value));
  const bytes = new Uint8Array(view.buffer);
  const [kind, width] =
    value < 2 ** 8
      ? [0xcc, 1]
      : value < 2 ** 16
        ? [0xcd, 2]
        : value < 2 ** 32
          ? [0xce, 4]
          : [0xcf, 8];
  return concat(Uint8Array.of(kind), bytes.subarray(9 - width));
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
