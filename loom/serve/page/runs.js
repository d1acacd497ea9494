// The list of runs, newest first, which is read again every few seconds.

import { request, usePolled } from "./api.js";
import { Age, Badge, RunLink } from "./elements.js";
import { html } from "./html.js";
import { addressOf, may } from "./state.js";
import { money } from "./text.js";
import { signal, useSignal } from "./vendor/signals.js";

const REFRESH = 3000;
const PAGE = 50;
const MOST = 500;
const STATUSES = ["running", "waiting_for_approval", "waiting_for_input", "paused", "completed", "aborted",
  "limit_reached", "budget_exhausted", "failed"];
const WAITING = ["approval", "input", "resume", "provider", "operator", "tenant"];
const COLUMNS = ["Task", "Status", "Waits for", "Agent", "Age", "Cost"];

const filters = signal({ status: "", waiting: "", session: "", text: "" }); // they stay while the page is open

export function Runs() {
  const limit = useSignal(PAGE);
  const found = useSignal(null);
  usePolled(REFRESH, async (leaving) => {
    const query = new URLSearchParams({ limit: limit.value, tasks: "true" });
    for (const name of ["status", "waiting", "session"]) if (filters.value[name]) query.set(name, filters.value[name]);
    const answer = await request(`/v1/runs?${query}`, { signal: leaving });
    if (!leaving.aborted) found.value = answer; // otherwise, a later request is on its way
  }, [filters.value, limit.value]);
  const runs = (found.value?.runs ?? []).map((run) => ({ ...run, task: found.value.tasks[run.run_id] ?? "" })).filter(isSought);
  const isFiltered = Object.values(filters.value).some(Boolean);
  return html`
    <div class="view-head"><h1 tabindex="-1">Runs</h1>
      ${may("start") && html`<a class="button primary" href=${addressOf("start")}>Start a run</a>`}</div>
    <${Filters} />
    <table class="runs">
      <thead><tr>${COLUMNS.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${runs.map((run) => html`<${Row} key=${run.run_id} run=${run} />`)}</tbody>
    </table>
    ${!runs.length && html`<p class="hint">${
      !found.value ? "Reading…" : isFiltered ? "No runs match." : "There are no runs yet."}</p>`}
    ${found.value?.next && limit.value < MOST && html`<button type="button"
      onClick=${() => { limit.value = Math.min(MOST, limit.value + PAGE); }}>Show more</button>`}`;
}

function Row({ run }) {
  const waits = !run.closed_at && run.waiting_on !== "none" && run.waiting_on;
  return html`<tr>
    <td><${RunLink} id=${run.run_id} text=${run.task || run.run_id} />${run.task && html`<span class="meta id">${run.run_id}</span>`}</td>
    <td><${Badge} status=${run.status} /></td>
    <td>${waits}</td>
    <td>${run.agent}${run.tenant && html`<span class="meta">${run.tenant}</span>`}</td>
    <td><${Age} at=${run.started_at} /></td>
    <td>${money(run.cost)}</td></tr>`;
}

function Filters() {
  const changed = ({ currentTarget: field }) => { filters.value = { ...filters.value, [field.name]: field.value.trim() }; };
  const Choice = ({ name, label, values }) => html`<select name=${name} aria-label=${label} onChange=${changed} value=${filters.value[name]}>
    <option value="">${label}: any</option>
    ${values.map((value) => html`<option value=${value}>${value.replaceAll("_", " ")}</option>`)}</select>`;
  const Search = ({ name, label }) => html`<input type="search" name=${name} placeholder=${label} aria-label=${label}
    defaultValue=${filters.value[name]} onInput=${changed} />`;
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    ${Choice({ name: "status", label: "Status", values: STATUSES })}
    ${Choice({ name: "waiting", label: "Waits for", values: WAITING })}
    ${Search({ name: "session", label: "Session" })}
    ${Search({ name: "text", label: "Task or ID" })}</form>`;
}

function isSought(run) {
  const text = filters.value.text.toLowerCase();
  return `${run.run_id} ${run.task} ${run.agent}`.toLowerCase().includes(text);
}
