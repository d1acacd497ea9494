// The parts that views are made of.

import { html } from "./html.js";
import { addressOf, complain, now, problem } from "./state.js";
import { useSignal } from "./vendor/signals.js";
import { count, since } from "./text.js";

const LONGEST = 10_000;

const KINDS = {
  completed: "good", success: "good", approved: "good",
  failed: "bad", error: "bad", denied: "bad", aborted: "bad", timeout: "bad",
  running: "busy",
  waiting_for_approval: "wait", waiting_for_input: "wait", paused: "wait", pending: "wait",
  limit_reached: "wait", budget_exhausted: "wait",
};

/** A status as a word with a colour. */
export function Badge({ status }) {
  const word = String(status ?? "unknown");
  return html`<span class=${`badge ${Object.hasOwn(KINDS, word) ? KINDS[word] : "plain"}`}>${word.replaceAll("_", " ").slice(0, 30)}</span>`;
}

/** Small facts beside each other. Those that are empty are left out. */
export function Meta({ facts }) {
  return html`<span class="meta">${facts.filter(Boolean).map((fact) => html`<span>${fact}</span>`)}</span>`;
}

/** How long ago a time was. */
export function Age({ at }) {
  return html`<time datetime=${at} title=${new Date(at).toLocaleString()}>${since(at, now.value)}</time>`;
}

export function RunLink({ id, text = id }) {
  return html`<a href=${addressOf("runs", id)}>${text}</a>`;
}

/** A text or, if it is long, its beginning and a button that shows all of it. `draw` returns the element of a text. */
export function Long({ text, draw }) {
  const isAsked = useSignal(false);
  if (text.length <= LONGEST || isAsked.value) return draw(text);
  return html`${draw(`${text.slice(0, LONGEST)}…`)}
    <p><button type="button" class="quiet" onClick=${() => { isAsked.value = true; }}>Show all (${count(text.length)} characters)</button></p>`;
}

/** How much of a limit is used. */
export function Meter({ name, used, limit }) {
  return html`<meter aria-label=${name} min="0" max=${limit} high=${limit * 0.8} optimum="0" value=${used ?? 0}></meter>`;
}

/** A form's field with its label. */
export function Field({ label, hint, children }) {
  return html`<label class="field"><span class="label">${label}</span>${children}
    ${hint && html`<span class="hint">${hint}</span>`}</label>`;
}

/** Return a function that does something for the person, once at a time, and shows why if it fails. */
export function useAction() {
  const isBusy = useSignal(false);
  const perform = async (act) => {
    if (isBusy.value) return;
    isBusy.value = true;
    try {
      await act();
      problem.value = null;
    } catch (error) {
      complain(error);
    } finally {
      isBusy.value = false;
    }
  };
  return [isBusy.value, perform];
}

/** A button. It keeps the focus while it works. */
export function Action({ act, children, ...attributes }) {
  const [isBusy, perform] = useAction();
  return html`<button type="button" ...${attributes} aria-disabled=${isBusy}
    onClick=${(event) => { const pressed = event.currentTarget; perform(() => act(pressed)); }}>${children}</button>`;
}

/** A form. `act` gets the values of its fields by name, and the form itself. */
export function Form({ act, submit, submitClass = "primary", children, beside, ...attributes }) {
  const [isBusy, perform] = useAction();
  const send = (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    perform(() => act(Object.fromEntries(new FormData(form)), form));
  };
  return html`<form ...${attributes} onSubmit=${send}>${children}
    <p class="actions"><button type="submit" class=${submitClass} aria-disabled=${isBusy}>${submit}</button>${beside}</p></form>`;
}

/** A text and the button that sends it. Enter sends, and Shift+Enter starts a new line. */
export function Composer({ label, submit, act, submitClass = "", rows = 1 }) {
  const send = async ({ text }, form) => {
    await act(text);
    form.reset();
  };
  return html`<${Form} class="composer" act=${send} submit=${submit} submitClass=${submitClass}>
    <textarea name="text" rows=${rows} required placeholder=${label} aria-label=${label} onKeyDown=${submitOnEnter}></textarea>
  <//>`;
}

function submitOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.currentTarget.form.requestSubmit();
}
