// One run, live: its log, what waits for a person, its budget, its sub-agents, and what a person may do with it.

import { Artifacts } from "./artifacts.js";
import { Asks } from "./asks.js";
import { Badge, Composer, Meta, Meter, RunLink } from "./elements.js";
import { html } from "./html.js";
import { Log } from "./log.js";
import { isNarrow, may } from "./state.js";
import { Steering, fork } from "./steering.js";
import { SubAgents } from "./sub_agents.js";
import { count, money } from "./text.js";
import { useRun } from "./watched_run.js";

export function Run({ name: id, reopen }) {
  const run = useRun(id);
  const status = run.status.value;
  const error = run.error || troubleOf(status);
  return html`<article class="run">
    <header class="run-head">
      <h1 tabindex="-1">${id}</h1>
      <span>${status && html`<${Badge} status=${status.status} />`}${status?.stale && " No worker answers"}</span>
      ${status && html`<${Steering} run=${run} status=${status} reopen=${reopen} />`}
    </header>
    <aside aria-label="About the run">
      <details class="about" open=${!isNarrow.value}>
        <summary>About the run${status && html`<${Meta} facts=${[status.turn !== null && `turn ${status.turn}`,
          status.usage && `${count(status.usage.total_tokens)} tokens`, status.cost && money(status.cost)]} />`}</summary>
        ${status && html`<${Facts} id=${id} status=${status} />`}
        ${status?.children.length > 0 && html`<section><h2>Sub-agents</h2><${SubAgents} runs=${status.children} /></section>`}
        ${status && html`<${Artifacts} run=${run} />`}
      </details>
    </aside>
    <div class="run-main">
      <${Log} log=${run.log} onFork=${may("fork") ? (turn) => fork(run, turn) : null} />
      <div class="waiting">
        ${error && html`<p class="error">${error}</p>`}
        <${Asks} entries=${run.waiting.value} onDecided=${() => run.refreshSoon()} />
      </div>
      ${status && !run.hasEnded && !status.question && may("send") && html`<${Composer} label="Message to the agent" submit="Send"
        act=${(text) => run.send("/messages", { text })} />`}
    </div>
  </article>`;
}

/** Return why the run doesn't go on. */
export function troubleOf(status) {
  if (status?.error) return `${status.error.type}: ${status.error.message}`;
  if (!status?.parked) return "";
  const { waiting_on: on, error, way_out: wayOut } = status.parked;
  return `Waits for the ${on}: ${error?.message ?? ""} ${wayOut ?? ""}`.trim();
}

function Facts({ id, status }) {
  const { budget, usage, context, forked_from: forked } = status;
  const limited = (label, key, format, used) => {
    const { spent = used, limit } = budget?.[key] ?? {};
    if (typeof limit !== "number") return [label, used === undefined || used === null ? null : format(used)];
    return [label, html`${format(spent)} of ${format(limit)}<${Meter} name=${label} used=${spent} limit=${limit} />`];
  };
  const isPart = id.includes("/") && !forked;
  const facts = [
    ["Turn", status.turn !== null && `${status.turn} of ${status.max_turns ?? "–"}`],
    ["Waits for", status.waiting_on],
    limited("Tokens", "tokens", count, usage?.total_tokens),
    limited("Cost", "cost_usd", money, status.cost),
    limited("Tool calls", "tool_calls", count, status.tool_calls),
    ["Context", context?.tokens > 0 && html`${count(context.tokens)} of ${count(context.window)}
      <${Meter} name="Context" used=${context.tokens} limit=${context.window} />`],
    ["Agent", status.agent],
    ["Model", status.model],
    ["Tenant", status.tenant],
    ["Session", status.session_id],
    ["Part of", isPart && html`<${RunLink} id=${id.slice(0, id.lastIndexOf("/"))} />`],
    ["Forked from", forked && html`<${RunLink} id=${forked.run_id} /> after turn ${forked.turn}`],
    ["Messages not yet read", status.queued_messages],
  ];
  return html`<dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`
    <div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
