// The inbox: what waits for a person in all runs, oldest first.

import { request, usePolled } from "./api.js";
import { Asks, undecided } from "./asks.js";
import { html } from "./html.js";
import { waiting } from "./state.js";
import { useSignal } from "./vendor/signals.js";

const REFRESH = 3000;
const SHOWN = 100;

export function Inbox() {
  const found = useSignal(null);
  const refresh = usePolled(REFRESH, async (signal) => {
    found.value = (await request("/v1/inbox", { signal })).waiting;
    waiting.value = undecided(found.value).length;
  });
  const entries = undecided(found.value ?? []);
  return html`<div class="view-head"><h1 tabindex="-1">Inbox</h1></div>
    <${Asks} entries=${entries.slice(0, SHOWN)} showsRun onDecided=${refresh} />
    ${!entries.length && html`<p class="hint">${found.value ? "Nothing waits for a person." : "Reading…"}</p>`}
    ${entries.length > SHOWN && html`<p class="hint">These are the oldest ${SHOWN} of ${entries.length}.</p>`}`;
}
