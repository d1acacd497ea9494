// What all views share: who uses the page, where the page is, and what it tells people.

import { signal } from "./vendor/signals.js";

export const me = signal(null);
export const place = signal(location.hash);
export const isConnected = signal(true);
export const waiting = signal(0); // in the inbox
export const said = signal({ number: 0, text: "" }); // to people who use a screen reader
export const problem = signal(null); // why something that the person wanted was refused or has failed
export const now = signal(Date.now());

const narrow = matchMedia("(max-width: 48rem)"); // as in app.css
export const isNarrow = signal(narrow.matches);
narrow.addEventListener("change", () => { isNarrow.value = narrow.matches; });
window.addEventListener("hashchange", () => { place.value = location.hash; });
setInterval(() => { now.value = Date.now(); }, 1000);

export const may = (operation) => me.value.may.includes(operation);

export function announce(text) {
  said.value = { number: said.value.number + 1, text };
}

export function complain(error) {
  if (error.name !== "AbortError") problem.value = error.message;
}

export function addressOf(view, name) {
  return name === undefined ? `#/${view}` : `#/${view}/${encodeURIComponent(name)}`;
}
