// What waits for a person: calls to approve or deny, with what they would write, and questions to answer.

import { post, request, runPath } from "./api.js";
import { askForm } from "./dialogs.js";
import { Effect } from "./effect.js";
import { Action, Age, Composer, Field, Meta, RunLink } from "./elements.js";
import { html } from "./html.js";
import { Markdown } from "./markdown.js";
import { announce, may, me } from "./state.js";
import { jsonOf } from "./text.js";
import { useEffect } from "./vendor/hooks.js";
import { signal, useSignal } from "./vendor/signals.js";

const LISTED = 10_000; // for so long, the lists of the service may have what was decided

const decided = signal(new Map());

export const keyOf = (entry) =>
  JSON.stringify([entry.kind, entry.run_id, entry.call_id ?? entry.question ?? "", entry.digest ?? entry.turn ?? ""]);

/** Return the entries that nobody has decided on this page. */
export const undecided = (entries) => 
  entries.filter((entry) => !(Date.now() - decided.value.get(keyOf(entry)) < LISTED));

/** `onDecided` is called after each decision. */
export function Asks({ entries, showsRun = false, onDecided }) {
  const shown = undecided(entries);
  const keys = shown.map(keyOf).join();
  useEffect(() => {
    if (shown.length) announce(`${shown.length} waiting for a person`);
  }, [keys]);
  return html`<ul class="asks" aria-label="Waiting for a person">
    ${shown.map((entry) => html`<${Ask} key=${keyOf(entry)} ...${{ entry, showsRun, onDecided }} />`)}</ul>`;
}

function Ask({ entry, showsRun, onDecided }) {
  const Content = { approval: Call, question: Question }[entry.kind] ?? Silent;
  const title = { approval: entry.tool, question: "Question" }[entry.kind] ?? `Waits: ${entry.waiting_on}`;
  return html`<li class="ask" tabindex="-1">
    <div class="ask-head">
      <h2>${title}</h2>
      <${Meta} facts=${[showsRun && html`<${RunLink} id=${entry.run_id} />`, entry.agent, entry.tenant,
        html`<${Age} at=${entry.since} />`]} />
    </div>
    <${Content} entry=${entry} onDone=${(what) => { leave(entry, what); onDecided(); }} onDecided=${onDecided} />
  </li>`;
}

/** Take a decided card away at once, and put the focus on the next one. */
function leave(entry, what) {
  const cards = [...document.querySelectorAll(".ask")];
  const card = cards.find((each) => each.contains(document.activeElement));
  const next = card && (cards[cards.indexOf(card) + 1] ?? cards[cards.indexOf(card) - 1]);
  if (card || document.activeElement === document.body) (next ?? document.getElementById("main")).focus({ preventScroll: !next });
  decided.value = new Map([...decided.value, [keyOf(entry), Date.now()]]);
  announce(what);
}

function Silent() {
  return html`<p class="hint">The run's worker doesn't answer, so nothing more is known.</p>`;
}

function Question({ entry, onDone }) {
  const answer = async (text) => {
    await post(runPath(entry.run_id, "/messages"), { text });
    onDone("Answered");
  };
  return html`<div class="question"><${Markdown} text=${entry.question} /></div>
    ${may("send") ? html`<${Composer} label="Answer" submit="Answer" submitClass="primary" rows=${2} act=${answer} />`
      : html`<p class="hint">Your role, ${me.value.role}, may not answer questions.</p>`}`;
}

function Call({ entry, onDone, onDecided }) {
  const full = useSignal(null);
  return html`
    ${entry.made_by !== entry.run_id && html`<p class="hint">By sub-agent <${RunLink} id=${entry.made_by} /></p>`}
    ${entry.question && html`<p class="question text">${entry.question}</p>`}
    <p class="why">
      ${entry.risk && html`<strong>It ${entry.risk}. </strong>`}
      ${entry.reason && !entry.question && `Asked because ${entry.reason}.`}
    </p>
    <${Effect} tool=${entry.tool} given=${full.value ?? entry.arguments} change=${full.value ? null : entry.change ?? null} />
    ${entry.is_cut && !full.value && html`<p class="hint">Long arguments are shortened.${" "}
      <${Action} class="quiet" act=${async () => { full.value = await fullArguments(entry); }}>Show all arguments<//></p>`}
    ${entry.approvals > 1 && html`<p class="votes hint">${entry.approvals} people must approve this call${
      entry.approved_by?.length ? `. Approved so far by: ${entry.approved_by.join(", ")}` : ""}.</p>`}
    ${may("approve") ? html`<${Decision} ...${{ entry, onDone, onDecided }} />`
      : html`<p class="hint">Your role, ${me.value.role}, may not approve or deny calls.</p>`}`;
}

function Decision({ entry, onDone, onDecided }) {
  const approve = async (changes = {}) => {
    const receipt = await post(runPath(entry.run_id, "/approve"), { call_id: entry.call_id, digest: entry.digest, ...changes });
    if (receipt.accepted) onDone("Approved");
    else onDecided();
  };
  const change = async () => {
    const changed = await editedArguments(await fullArguments(entry));
    if (changed) await approve({ arguments: changed });
  };
  const deny = async () => {
    const given = await askForm(`Deny ${entry.tool}`, html`
      <${Field} label="Reason" hint="The model reads it."><input name="reason" autocomplete="off" /><//>`, "Deny", { isDangerous: true });
    if (!given) return;
    await post(runPath(entry.run_id, "/deny"), { call_id: entry.call_id, reason: given.reason });
    onDone("Denied");
  };
  return html`<p class="actions">
    <${Action} class="primary" act=${() => approve()}>Approve<//>
    <${Action} class="danger" act=${deny}>Deny<//>
    ${entry.for_run.length > 0 && html`<${Action} act=${() => approve({ scope: "run" })}
      title=${`Also approves later calls that match ${entry.for_run.join(", ")}`}>Approve for the run<//>`}
    <${Action} act=${change}>Change and approve<//></p>`;
}

async function fullArguments(entry) {
  if (!entry.is_cut) return entry.arguments;
  const { pending_approvals: calls } = await request(runPath(entry.made_by));
  const found = calls.find((call) => call.digest === entry.digest);
  if (!found) throw new Error("The full arguments can't be read now. Try again, or approve the call with the command line.");
  return found.arguments;
}

async function editedArguments(given) {
  const check = ({ currentTarget: field }) => field.setCustomValidity(isObject(field.value) ? "" : "Write a JSON object.");
  const answer = await askForm("Change the arguments", html`<${Field} label="Arguments, as JSON">
    <textarea name="arguments" rows="12" class="code" spellcheck="false" defaultValue=${jsonOf(given)} onInput=${check}></textarea>
  <//>`, "Approve with these arguments");
  return answer && JSON.parse(answer.arguments);
}

function isObject(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}
