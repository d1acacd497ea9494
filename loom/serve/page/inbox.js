// The inbox: what waits for a person in all runs, oldest first.

import { request, usePolled } from "./api.js";
import { Asks, undecided } from "./asks.js";
import { html } from "./html.js";
import { waiting } from "./state.js";
import { useSignal } from "./vendor/signals.js";

const REFRESH = 3000;
const MOST = 100;

export function Inbox() {
  const found = useSignal(null);
  const refresh = usePolled(REFRESH, async (signal) => {
    found.value = await request(`/v1/inbox?limit=${MOST}`, { signal });
    waiting.value = undecided(found.value.waiting).length + found.value.total - found.value.waiting.length;
  });
  const { waiting: entries, total } = found.value ?? { waiting: [], total: 0 };
  const isEmpty = undecided(entries).length === 0;
  return html`<div class="view-head"><h1 tabindex="-1">Inbox</h1></div>
    <${Asks} entries=${entries} showsRun onDecided=${refresh} />
    ${isEmpty && html`<p class="hint">${found.value ? "Nothing waits for a person." : "Reading…"}</p>`}
    ${total > entries.length && html`<p class="hint">These are the oldest ${entries.length} of ${total}.</p>`}`;
}
