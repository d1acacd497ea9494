// The list of runs, newest first, which is read again every few seconds.

import { Problem, Unreachable, every, request } from "./api.js";
import { age, badge, button, complain, element, fill, money, reconcile, runLink } from "./dom.js";

const REFRESH = 3000;
const PAGE = 50;
const MOST = 500;
const STATUSES = ["running", "waiting_for_approval", "waiting_for_input", "paused", "completed", "aborted",
  "limit_reached", "budget_exhausted", "failed"];
const WAITING = ["approval", "input", "resume", "provider", "operator", "tenant"];
const COLUMNS = ["Task", "Status", "Waits for", "Agent", "Age", "Cost"];

const filters = { status: "", waiting: "", session: "", text: "" }; // they stay while the page is open

export async function runsView(main, { me, signal, showConnection }) {
  let limit = PAGE;
  let isRead = false;
  const body = element("tbody");
  const table = element("table", { class: "runs" },
    element("thead", {}, element("tr", {}, COLUMNS.map((name) => element("th", { scope: "col" }, name)))), body);
  const nothing = element("p", { class: "hint" }, "Reading…");
  const more = button("Show more", () => { limit = Math.min(MOST, limit + PAGE); refresh(); }, { hidden: true });

  async function refresh() {
    const asked = { ...filters };
    const query = new URLSearchParams({ limit, tasks: "true" });
    for (const name of ["status", "waiting", "session"]) if (asked[name]) query.set(name, asked[name]);
    try {
      const { runs, tasks, next } = await request(`/v1/runs?${query}`, { signal });
      showConnection(true);
      if (JSON.stringify(asked) !== JSON.stringify(filters)) return; // a later request is on its way
      const found = runs.map((run) => ({ ...run, task: tasks[run.run_id] || "" })).filter(isSought);
      reconcile(body, found, (run) => run.run_id, rowOf, updateRow);
      nothing.hidden = found.length > 0;
      fill(nothing, isRead && Object.values(filters).some(Boolean) ? "No run matches." : "There are no runs yet.");
      isRead = true;
      more.hidden = next === null || limit === MOST;
    } catch (error) {
      if (error instanceof Unreachable) showConnection(false);
      else if (error instanceof Problem) complain(error);
      else if (error.name !== "AbortError") throw error;
    }
  }

  const changed = (event) => { filters[event.target.name] = event.target.value.trim(); refresh(); };
  const select = (name, label, values) => {
    const made = element("select", { name, "aria-label": label, onchange: changed },
      element("option", { value: "" }, `${label}: any`),
      values.map((value) => element("option", { value }, value.replaceAll("_", " "))));
    made.value = filters[name];
    return made;
  };
  const input = (name, label) => {
    const made = element("input", { name, type: "search", placeholder: label, "aria-label": label, oninput: changed });
    made.value = filters[name];
    return made;
  };
  fill(main, element("div", { class: "view-head" }, element("h1", { tabindex: "-1" }, "Runs"),
    me.may.includes("start") ? element("a", { href: "#/start", class: "button primary" }, "Start a run") : null),
  element("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    select("status", "Status", STATUSES), select("waiting", "Waits for", WAITING),
    input("session", "Session"), input("text", "Find in tasks and IDs")),
  table, nothing, more);
  await every(REFRESH, signal, refresh);
}

function isSought(run) {
  const text = filters.text.toLowerCase();
  return !text || `${run.run_id} ${run.task} ${run.agent}`.toLowerCase().includes(text);
}

function rowOf(run) {
  const [first, ...others] = COLUMNS.map((name) => element("td", { "data-label": name }));
  fill(first, runLink(run.run_id, run.task || run.run_id), run.task ? element("span", { class: "meta id" }, run.run_id) : null);
  return element("tr", {}, first, others);
}

function updateRow(row, run) {
  const facts = JSON.stringify([run.status, run.waiting_on, run.cost, run.started_at]);
  if (row.dataset.facts === facts) return;
  row.dataset.facts = facts;
  const [, status, waiting, agent, time, cost] = row.cells;
  fill(status, badge(run.status));
  fill(waiting, run.closed_at || run.waiting_on === "none" ? "" : run.waiting_on);
  fill(agent, run.agent, run.tenant ? element("span", { class: "meta" }, run.tenant) : null);
  fill(time, age(run.started_at));
  fill(cost, money(run.cost));
}
