// The form that starts a run.

import { post, request, usePolled } from "./api.js";
import { Field, Form } from "./elements.js";
import { html } from "./html.js";
import { addressOf, may, me } from "./state.js";
import { useState } from "./vendor/hooks.js";
import { useSignal } from "./vendor/signals.js";

const REFRESH = 60_000;

export function Start() {
  const [runId] = useState(() => ownName("run"));
  if (!may("start")) return html`<h1 tabindex="-1">Start a run</h1>
    <p>Your role, ${me.value.role}, may not start runs. Ask for a token with the role operator.</p>`;
  return html`<h1 tabindex="-1">Start a run</h1>
    <${Form} class="start" submit="Start" act=${(given) => start(given, runId)}>
      <${Field} label="Task"><textarea name="task" rows="5" required></textarea><//>
      <${Field} label="Agent"><${AgentChoice} hasCrews /><//>
      <${Field} label="Model" hint="Such as anthropic:NAME. Leave empty to use the agent's model."><input name="model" autocomplete="off" /><//>
      <${Field} label="Workspace" hint="A folder on the worker's machine. Leave empty to use the worker's own.">
        <input name="workspace" autocomplete="off" /><//>
      <details><summary>Limits, permissions and more</summary>
        <${Field} label="Maximum turns"><input name="max_turns" type="number" min="1" /><//>
        <${Field} label="Maximum cost in US dollars"><input name="cost_usd" type="number" min="0" step="any" /><//>
        <${Field} label="Maximum tokens"><input name="tokens" type="number" min="1" /><//>
        <${Field} label="Session" hint="Groups runs."><input name="session_id" autocomplete="off" /><//>
        <${Field} label="Permission rules, as JSON" hint="They are merged over the agent's rules.">
          <textarea name="permissions" rows="3" class="code" spellcheck="false" placeholder='{"bash": "ask"}'></textarea><//>
      </details>
    <//>`;
}

/** The agents, and the crews, of the running workers. Values are such as `agent writer`. */
export function AgentChoice({ hasCrews = false }) {
  const found = useSignal({ agents: [], crews: [] });
  usePolled(REFRESH, async (signal) => { found.value = await request("/v1/agents", { signal }); });
  const { agents, crews } = found.value;
  return html`<select name="agent">
    <option value="">default</option>
    ${agents.filter((name) => name !== "default").map((name) => html`<option value=${`agent ${name}`}>${name}</option>`)}
    ${hasCrews && crews.map((name) => html`<option value=${`crew ${name}`}>${name} (crew)</option>`)}</select>`;
}

/** Return an ID that nobody else has. */
export function ownName(kind) {
  const number = crypto.getRandomValues(new Uint32Array(2)).join("").slice(0, 16);
  return `${me.value.tenant ? `${me.value.tenant}:` : ""}${kind}-${number}`;
}

async function start(fields, runId) {
  const given = Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, value.trim()]));
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
  location.hash = addressOf("runs", runId);
}

function rulesIn(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('Permission rules must be a JSON object, such as {"bash": "ask"}.');
  }
}
