// What to call an object. A pseudonym says nothing and is too long to compare, so people read its kind
// and its last letters; the details have it whole.

const LETTERS = 6;
const HEX = /^[0-9a-f]{16,}$/;
const OPAQUE = /^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[\w-]{22,}$/; // base64url of 128 bits at least
const ISSUED = /^[\w-]{22,}@/; // the same, with the trusted node's name

export function drawn(vid: string): boolean {
  return HEX.test(vid) || OPAQUE.test(vid) || ISSUED.test(vid);
}

export function nameOf(vid: string, kind = "object"): string {
  if (!drawn(vid)) return vid;
  const letters = (vid.split("@")[0] as string).replace(/[-_]/g, "");
  return `${kind.charAt(0).toUpperCase()}${kind.slice(1)} ${letters.slice(-LETTERS)}`;
}
