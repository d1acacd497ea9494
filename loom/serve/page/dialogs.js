// Dialogs that ask the person something. Esc closes them and changes nothing.

import { Form } from "./elements.js";
import { html } from "./html.js";
import { useLayoutEffect, useRef } from "./vendor/hooks.js";
import { signal } from "./vendor/signals.js";

const open = signal([]);
let opened = 0;

/** Open a dialog with what `content(decide)` returns. Resolves with what `decide` was called with, or null if it was closed. */
export function ask(title, content) {
  return new Promise((resolve) => {
    const dialog = { key: opened++, title, content, settle };
    function settle(answer) {
      open.value = open.value.filter((each) => each !== dialog);
      resolve(answer);
    }
    open.value = [...open.value, dialog];
  });
}

/** Open a dialog with one form. Resolves with the values of its fields by name, or null. */
export function askForm(title, fields, submit, { isDangerous = false, note = "" } = {}) {
  return ask(title, (decide) => html`
    <${Form} act=${decide} submit=${submit} submitClass=${isDangerous ? "danger" : "primary"}
      beside=${html`<button type="button" onClick=${() => decide(null)}>Cancel</button>`}>
      ${note && html`<p class="hint">${note}</p>`}
      ${fields}
    <//>`);
}

export function Dialogs() {
  return open.value.map((dialog) => html`<${Dialog} ...${dialog} />`);
}

function Dialog({ title, content, settle }) {
  const dialog = useRef();
  const answer = useRef(null);
  useLayoutEffect(() => {
    dialog.current.showModal();
    dialog.current.querySelector("input, textarea, select, button")?.focus();
  }, []);
  const decide = (value) => {
    answer.current = value;
    dialog.current.close();
  };
  return html`<dialog ref=${dialog} aria-label=${title} onClose=${() => settle(answer.current)}>
    <h2>${title}</h2>${content(decide)}</dialog>`;
}
