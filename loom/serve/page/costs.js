// What runs cost, by day, agent, model and more.

import { request, usePolled } from "./api.js";
import { html } from "./html.js";
import { count, money } from "./text.js";
import { signal, useSignal } from "./vendor/signals.js";

const REFRESH = 30_000;
const KEYS = ["day", "agent", "model", "session", "tenant", "user"];
const SPANS = { "24h": "1 day", "7d": "7 days", "4w": "4 weeks", "": "All retained runs" };
const HEIGHT = 160;
const STEP = 36;
const GAP = 4;

const asked = signal({ by: "day", since: "4w" }); // they stay while the page is open

export function Costs() {
  const found = useSignal(null);
  usePolled(REFRESH, async (leaving) => {
    const { by, since } = asked.value;
    const answer = await request(`/v1/costs?${new URLSearchParams({ by, ...(since && { since }) })}`, { signal: leaving });
    if (!leaving.aborted) found.value = answer;
  }, [asked.value]);
  const costs = found.value;
  const changed = ({ currentTarget: field }) => { asked.value = { ...asked.value, [field.name]: field.value }; };
  return html`<div class="view-head"><h1 tabindex="-1">Costs</h1></div>
    <form class="filters few">
      <select name="by" aria-label="Add up by" value=${asked.value.by} onChange=${changed}>
        ${KEYS.map((key) => html`<option value=${key}>By ${key}</option>`)}</select>
      <select name="since" aria-label="Runs of the last" value=${asked.value.since} onChange=${changed}>
        ${Object.entries(SPANS).map(([span, label]) => html`<option value=${span}>${label}</option>`)}</select>
    </form>
    ${!costs ? html`<p class="hint">Reading…</p>` : !costs.groups.length ? html`<p class="hint">No runs in this time.</p>` : html`
      ${costs.by === "day" && html`<${Days} groups=${costs.groups} />`}
      <${Table} costs=${costs} />
      ${!costs.is_complete && html`<p class="hint">There are more runs than one report counts. These are those that ended last.</p>`}`}`;
}

/** One bar for each day. The table below has the same figures. */
function Days({ groups }) {
  const days = daysIn(groups);
  const most = Math.max(...days.map((day) => day.cost), 0.000001);
  const width = days.length * STEP;
  return html`<figure class="days">
    <figcaption class="hint">Highest: ${money(most)} a day</figcaption>
    <div class="aside-scroll" tabindex="0" role="group" aria-label="Cost by day">
      <svg role="img" aria-label=${`Cost by day, from ${days[0]?.name} to ${days.at(-1)?.name}. The table has the figures.`}
        width=${width} height=${HEIGHT + 18} viewBox=${`0 0 ${width} ${HEIGHT + 18}`}>
        ${days.map(({ name, cost }, place) => {
          const height = cost ? Math.max(2, (cost / most) * HEIGHT) : 0;
          return html`<g key=${name}><title>${name}: ${money(cost)}</title>
            <rect class="bar" x=${place * STEP + GAP} y=${HEIGHT - height} width=${STEP - 2 * GAP} height=${height} />
            <text x=${place * STEP + STEP / 2} y=${HEIGHT + 13} text-anchor="middle">${name.slice(8)}</text></g>`;
        })}</svg>
    </div></figure>`;
}

/** Return all days from the first to the last one, those without runs too. */
function daysIn(groups) {
  const costs = new Map(groups.filter(({ name }) => name).map(({ name, cost }) => [name, cost ?? 0]));
  const names = [...costs.keys()];
  const days = [];
  for (let day = new Date(names[0]); names.length && day <= new Date(names.at(-1)); day.setUTCDate(day.getUTCDate() + 1)) {
    const name = day.toISOString().slice(0, 10);
    days.push({ name, cost: costs.get(name) ?? 0 });
  }
  return days;
}

const COLUMNS = { runs: "Runs", sub_agents: "Sub-agents", running: "In progress", unknown: "Unknown price" };

function Table({ costs }) {
  const groups = costs.by === "day" ? costs.groups.toReversed() : costs.groups;
  const figures = (group) => html`<td>${money(group.cost)}</td>
    ${Object.keys(COLUMNS).map((name) => html`<td>${count(group[name])}</td>`)}`;
  return html`<div class="aside-scroll" tabindex="0" role="group" aria-label="Table of costs"><table class="costs">
    <thead><tr><th scope="col">${costs.by[0].toUpperCase() + costs.by.slice(1)}</th><th scope="col">Cost</th>
      ${Object.values(COLUMNS).map((label) => html`<th scope="col">${label}</th>`)}</tr></thead>
    <tbody>${groups.map((group) => html`<tr key=${group.name}>
      <th scope="row">${group.name || (costs.by === "day" ? "In progress" : "–")}</th>${figures(group)}</tr>`)}</tbody>
    <tfoot><tr><th scope="row">Total</th>${figures(costs.total)}</tr></tfoot></table></div>`;
}
