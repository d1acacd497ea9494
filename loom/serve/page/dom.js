// Builds elements. All text goes through `visible` and becomes a text node, so nothing that a model, a tool or a person
// has written is ever parsed as HTML.

// Control characters, and characters that are invisible or change the order of the text around them.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** Return the text with each hidden character replaced by its code point, such as ‹U+202E›. */
export function visible(text) {
  return String(text ?? "").replaceAll("\r\n", "\n").replace(HIDDEN, (one) => {
    const code = one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `‹U+${code}›`;
  });
}

/** Make an element: `element("a", { href, class: "run" }, "text", child, null)`. `on…` attributes are listeners. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : name === "title" || name === "aria-label" ? visible(value) : value);
  }
  fill(made, ...children);
  return made;
}

/** Replace an element's children. Strings become text. */
export function fill(parent, ...children) {
  const nodes = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  parent.replaceChildren(...nodes.map((child) => (child instanceof Node ? child : visible(child))));
}

/** Small facts beside each other. Those that are empty are left out. */
export function meta(...facts) {
  return element("span", { class: "meta" }, facts.filter(Boolean).map((fact) => element("span", {}, fact)));
}

/** A form field with its label. */
export function field(label, control, hint) {
  return element("label", { class: "field" }, element("span", { class: "label" }, label), control,
    hint ? element("span", { class: "hint" }, hint) : null);
}

export function button(label, onclick, attributes = {}) {
  return element("button", { type: "button", ...attributes, onclick }, label);
}

/** Say something to people who use a screen reader. */
export function announce(text) {
  document.getElementById("told").textContent = visible(text);
}

/** Show why something that the person wanted was refused or has failed. */
export function complain(error) {
  const shown = element("p", {}, error.message, button("Dismiss", () => shown.remove(), { class: "quiet" }));
  document.getElementById("alerts").replaceChildren(shown);
}

/** Do what a button stands for, once at a time, and show an error. Returns whether it succeeded. */
export async function perform(control, action) {
  control.disabled = true;
  try {
    await action();
    document.getElementById("alerts").replaceChildren();
    return true;
  } catch (error) {
    complain(error);
    return false;
  } finally {
    control.disabled = false;
  }
}

/** Make the children of `list` those of `entries`, in this order, keeping the elements of known keys. */
export function reconcile(list, entries, keyOf, make, update) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let place = list.firstElementChild;
  for (const entry of entries) {
    const key = keyOf(entry);
    let child = known.get(key);
    if (!child) {
      child = make(entry);
      child.dataset.key = key;
    }
    known.delete(key);
    update?.(child, entry);
    if (child === place) place = place.nextElementSibling;
    else list.insertBefore(child, place);
  }
  for (const child of known.values()) child.remove();
}

/** A status as a word with a colour. */
export function badge(status) {
  const kind = {
    completed: "good", success: "good", approved: "good",
    failed: "bad", error: "bad", denied: "bad", aborted: "bad", timeout: "bad",
    running: "busy",
    waiting_for_approval: "wait", waiting_for_input: "wait", paused: "wait", pending: "wait",
    limit_reached: "wait", budget_exhausted: "wait",
  }[status] ?? "plain";
  return element("span", { class: `badge ${kind}` }, String(status ?? "unknown").replaceAll("_", " "));
}

/** Open a dialog, and resolve with what `decide` was called with, or null if it was closed. */
export function ask(title, build) {
  return new Promise((resolve) => {
    let answer = null;
    const dialog = element("dialog", { "aria-label": title });
    const decide = (value) => { answer = value; dialog.close(); };
    fill(dialog, element("h2", {}, title), build(decide));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(answer); }, { once: true });
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector("input, textarea, select, button")?.focus();
  });
}

/** Open a dialog with one form. `fields` are elements with a `name`. Resolves with the values by name, or null. */
export function askForm(title, fields, submit, { danger = false, note = "" } = {}) {
  return ask(title, (decide) => {
    const form = element("form", {
      onsubmit: (event) => { event.preventDefault(); decide(Object.fromEntries(new FormData(form))); },
    }, note ? element("p", { class: "hint" }, note) : null, fields, element("p", { class: "actions" },
      element("button", { type: "submit", class: danger ? "danger" : "primary" }, submit),
      button("Cancel", () => decide(null))));
    return form;
  });
}

export function money(dollars) {
  if (dollars === null || dollars === undefined) return "–";
  return `$${dollars < 1 ? dollars.toFixed(4) : dollars.toFixed(2)}`;
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

/** How long ago a time was, which the page keeps up to date. */
export function age(iso) {
  return element("time", { datetime: iso, "data-age": iso, title: new Date(iso).toLocaleString() }, since(iso));
}

function since(iso) {
  const seconds = Math.max(0, (Date.now() - Date.parse(iso)) / 1000);
  return seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
}

setInterval(() => {
  for (const time of document.querySelectorAll("[data-age]")) {
    const text = since(time.dataset.age);
    if (time.textContent !== text) time.textContent = text;
  }
}, 1000);

export function runLink(runId, text = runId) {
  return element("a", { href: `#/runs/${encodeURIComponent(runId)}` }, text);
}
