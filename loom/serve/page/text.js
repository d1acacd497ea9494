// Texts and numbers as people read them.

// Control characters, and characters that are invisible or change the order of the text around them.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** Return the text with each hidden character replaced by its code point, such as ‹U+202E›. */
export function visible(text) {
  return text.replaceAll("\r\n", "\n").replace(HIDDEN, (one) =>
    `‹U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

/** Return a value as JSON in which hidden characters are escaped. */
export function jsonOf(value) {
  return JSON.stringify(value, null, 2).replace(HIDDEN, (one) => (one < " " ? one
    : one.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("")));
}

export const textOf = (value) => (typeof value === "string" ? value : jsonOf(value ?? ""));

export function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most)}\n… shortened` : text;
}

export function plural(number, one) {
  return `${count(number)} ${one}${number === 1 ? "" : "s"}`;
}

export function money(dollars) {
  if (dollars === null || dollars === undefined) return "–";
  return `$${dollars.toFixed(dollars > 0 && dollars < 0.1 ? 4 : 2)}`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en");
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** Return how long ago a time was. */
export function since(iso, now) {
  const seconds = Math.max(0, (now - Date.parse(iso)) / 1000);
  return seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
}
