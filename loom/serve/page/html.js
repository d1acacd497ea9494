// Elements from templates: html`<p class="hint">${text}</p>`. All text passes through `visible` here, and becomes a text
// node: nothing that a model, a tool or a person has written is parsed as HTML. `markdown.js` shows what a model says.

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";
import { visible } from "./text.js";

const READ = ["title", "aria-label", "placeholder"]; // attributes that people read

const template = htm.bind((type, attributes, ...children) => h(type, shown(attributes), ...children.map(shownChild)));

export const html = (...parts) => shownChild(template(...parts));

function shown(attributes) {
  for (const name of READ) {
    if (typeof attributes?.[name] === "string") attributes = { ...attributes, [name]: visible(attributes[name]) };
  }
  return attributes;
}

function shownChild(child) {
  if (typeof child === "string") return visible(child);
  return Array.isArray(child) ? child.map(shownChild) : child;
}
