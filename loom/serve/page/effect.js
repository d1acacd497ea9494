// What a call would do: the difference that it makes to a file, or its arguments.

import { Badge, Long } from "./elements.js";
import { html } from "./html.js";
import { textOf } from "./text.js";

/** `change` is the difference to the file itself: "" for none, and null if it isn't known. */
export function Effect({ tool, given, change }) {
  const shown = change ?? changeIn(tool, given);
  if (!shown) return html`<div class="effect"><${Arguments} given=${given} />
    ${shown === "" && html`<p class="hint">The file would stay as it is.</p>`}</div>`;
  return html`<div class="effect"><${Diff} lines=${shown.split("\n")} path=${given.path} />
    ${change === null && html`<p class="hint">The file itself can't be read here: these are the call's arguments.</p>`}</div>`;
}

/** Return the difference that the arguments alone tell. */
export function changeIn(tool, given) {
  if (tool === "edit_file" && typeof given?.old_string === "string" && typeof given.new_string === "string") {
    return [...marked("-", given.old_string), ...marked("+", given.new_string)].join("\n");
  }
  if (tool === "write_file" && typeof given?.content === "string") return marked("+", given.content).join("\n");
  return null;
}

const marked = (mark, text) => text.replace(/\n$/, "").split("\n").map((line) => mark + line);

const KINDS = { "+": "added", "-": "removed", "@": "place" };

export function Diff({ lines, path }) {
  const body = lines[0]?.startsWith("--- ") && lines[1]?.startsWith("+++ ") ? lines.slice(2) : lines;
  const number = (mark) => body.filter((line) => line.startsWith(mark)).length;
  return html`<figure class="diff">
    <figcaption>
      <span class="path">${path ?? ""}</span>
      ${lines[0] === "--- /dev/null" && html`<${Badge} status="new file" />`}
      <span class="added">+${number("+")}</span><span class="removed">−${number("-")}</span>
    </figcaption>
    <${Long} text=${body.join("\n")} draw=${(text) => html`
      <div class="code lines" tabindex="0" role="group" aria-label=${`Change of ${path ?? "a file"}`}>
        ${text.split("\n").map((line) => html`<div class=${KINDS[line[0]] ?? ""}>${line || " "}</div>`)}
      </div>`} />
  </figure>`;
}

/** A call's arguments, one below the other. */
export function Arguments({ given }) {
  const entries = Object.entries(given ?? {});
  if (!entries.length) return html`<p class="hint">No arguments</p>`;
  return html`<dl class="arguments">${entries.map(([name, value]) => html`
    <dt>${name}</dt><dd class="code"><${Long} text=${textOf(value)} draw=${(text) => html`${text}`} /></dd>`)}</dl>`;
}
