// The form that starts a run.

import { Problem, post, request } from "./api.js";
import { complain, element, field, fill, perform } from "./dom.js";

export async function startView(main, { me, signal }) {
  if (!me.may.includes("start")) {
    fill(main, element("h1", { tabindex: "-1" }, "Start a run"),
      element("p", {}, `Your role, ${me.role}, may not start runs. Ask for a token with the role operator.`));
    return;
  }
  const runId = `${me.tenant ? `${me.tenant}:` : ""}run-${crypto.getRandomValues(new Uint32Array(2)).join("").slice(0, 16)}`;
  const agents = element("select", { name: "agent" }, element("option", { value: "" }, "default"));
  const submit = element("button", { type: "submit", class: "primary" }, "Start");
  const form = element("form", {
    class: "start",
    onsubmit: (event) => { event.preventDefault(); perform(submit, () => start(form, runId)); },
  },
  field("Task", element("textarea", { name: "task", rows: "5", required: true })),
  field("Agent", agents),
  field("Model", element("input", { name: "model", autocomplete: "off" }), "Such as anthropic:NAME. Empty: the agent's."),
  field("Workspace", element("input", { name: "workspace", autocomplete: "off" }),
    "A folder on the worker's machine. Empty: the worker's."),
  element("details", {}, element("summary", {}, "Limits, permissions and more"),
    field("Turns at most", element("input", { name: "max_turns", type: "number", min: "1" })),
    field("Cost at most, in US dollars", element("input", { name: "cost_usd", type: "number", min: "0", step: "any" })),
    field("Tokens at most", element("input", { name: "tokens", type: "number", min: "1" })),
    field("Session", element("input", { name: "session_id", autocomplete: "off" }), "Groups runs."),
    field("Permission rules, as JSON", element("textarea", { name: "permissions", rows: "3", class: "code", spellcheck: "false",
      placeholder: '{"bash": "ask"}' }), "They are merged over the agent's rules.")),
  element("p", { class: "actions" }, submit));
  fill(main, element("h1", { tabindex: "-1" }, "Start a run"), form);
  try {
    const { agents: names, crews } = await request("/v1/agents", { signal });
    fill(agents, element("option", { value: "" }, "default"),
      names.filter((name) => name !== "default").map((name) => element("option", { value: `agent ${name}` }, name)),
      crews.map((name) => element("option", { value: `crew ${name}` }, `${name} (crew)`)));
  } catch (error) {
    if (error instanceof Problem) complain(error);
  }
}

async function start(form, runId) {
  const given = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
  const body = { run_id: runId, task: given.task };
  for (const name of ["model", "workspace", "session_id"]) if (given[name]) body[name] = given[name];
  const [kind, ...name] = given.agent.split(" ");
  if (kind) body[kind] = name.join(" ");
  if (given.max_turns) body.max_turns = Number(given.max_turns);
  const budget = {};
  for (const limit of ["cost_usd", "tokens"]) if (given[limit]) budget[limit] = Number(given[limit]);
  if (Object.keys(budget).length) body.budget = budget;
  if (given.permissions) body.permissions = rulesIn(given.permissions);
  try {
    await post("/v1/runs", body);
  } catch (error) {
    // The same form was sent before, and only its answer was lost.
    if (error.title !== "RunExistsError") throw error;
  }
  location.hash = `#/runs/${encodeURIComponent(runId)}`;
}

function rulesIn(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('Permission rules must be a JSON object, such as {"bash": "ask"}.');
  }
}
