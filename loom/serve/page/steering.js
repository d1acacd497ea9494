// What a person may do with a run: pause it, let it go on, retry it, fork it, abort it.

import { post, runPath } from "./api.js";
import { askForm } from "./dialogs.js";
import { Action, Field } from "./elements.js";
import { html } from "./html.js";
import { addressOf, complain, may, me } from "./state.js";

export function Steering({ run, status, reopen }) {
  const { hasEnded } = run;
  const offers = [
    ["pause", "Pause", !hasEnded && status.status !== "paused", () => run.send("/pause")],
    ["resume", "Resume", status.status === "paused", () => run.send("/resume")],
    ["retry", "Retry", (hasEnded && status.status !== "completed") || status.parked, () => retry(run, reopen)],
    ["fork", "Fork", status.turn > 0, () => fork(run, status.turn)],
    ["abort", "Abort", !hasEnded, () => abort(run)],
  ];
  return html`<p class="actions">
    ${offers.filter(([operation, , fits]) => fits && may(operation)).map(([operation, label, , act]) => html`
      <${Action} key=${operation} act=${act} class=${operation === "abort" ? "danger" : ""}>${label}<//>`)}
    ${me.value.temporal_ui && html`<a key="temporal" target="_blank" rel="noreferrer"
      href=${me.value.temporal_ui + encodeURIComponent(run.id)}>Open in Temporal</a>`}</p>`;
}

async function abort(run) {
  const given = await askForm(`Abort ${run.id}`, html`
    <${Field} label="Reason" hint="It becomes part of the result."><input name="reason" autocomplete="off" /><//>`,
  "Abort the run", { isDangerous: true });
  if (given) await run.send("/abort", given);
}

async function retry(run, reopen) {
  const given = await askForm("Retry", html`
    <${Field} label="Model" hint="Leave empty to keep the model."><input name="model" autocomplete="off" /><//>
    <${Field} label="Maximum turns" hint="Leave empty to keep the limit."><input name="max_turns" type="number" min="1" /><//>
    <${Field} label="Message" hint="The agent reads it first."><textarea name="message" rows="2"></textarea><//>`, "Retry");
  if (!given) return;
  const { hasEnded } = run;
  const { model, max_turns: turns, message } = given;
  await run.send("/retry", { ...(model && { model }), ...(turns && { max_turns: Number(turns) }), ...(message && { message }) });
  if (hasEnded) reopen(); // its stream goes on
}

export async function fork(run, turn) {
  const given = await askForm("Fork", html`
    <${Field} label="After turn" hint="The new run starts from the state after this turn. 0 is the beginning.">
      <input name="turn" type="number" min="0" required defaultValue=${turn} /><//>
    <${Field} label="Message" hint="What the agent should do differently."><textarea name="message" rows="3"></textarea><//>`,
  "Start the new run");
  if (!given) return;
  try {
    const { run_id: forked } = await post(runPath(run.id, "/fork"), {
      turn: Number(given.turn), ...(given.message && { message: given.message }),
    });
    location.hash = addressOf("runs", forked);
  } catch (error) {
    complain(error);
  }
}
