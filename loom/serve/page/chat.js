// One chat: what was said, what the agent does, and a field for the next message.

import { post, request } from "./api.js";
import { Asks } from "./asks.js";
import { chatPath, newMessageId } from "./chats.js";
import { askForm } from "./dialogs.js";
import { Action, Badge, Composer, Field, Long, Meta } from "./elements.js";
import { html } from "./html.js";
import { Log } from "./log.js";
import { Markdown } from "./markdown.js";
import { troubleOf } from "./run.js";
import { addressOf, complain, may } from "./state.js";
import { money, plural } from "./text.js";
import { useRef } from "./vendor/hooks.js";
import { useSignal } from "./vendor/signals.js";
import { useRun } from "./watched_run.js";

export function Chat({ name: id, reopen }) {
  const run = useRun(id);
  const unanswered = useRef(null); // a message whose receipt was lost keeps its ID, and is answered once
  const status = run.status.value;
  const send = async (text) => {
    if (unanswered.current?.text !== text) unanswered.current = { text, message_id: newMessageId() };
    const { hasEnded } = run;
    const { agent, session_id: session } = status; // the agent counts if the chat was closed and begins anew
    await post(chatPath(session), { ...ownerOf(id), ...(agent && { agent }), ...unanswered.current });
    unanswered.current = null;
    if (hasEnded) reopen();
    else run.refreshSoon();
  };
  const { answering = [], queue = [] } = status?.chat ?? {};
  const error = run.error || troubleOf(status);
  return html`<article class="chat-view">
    <header class="run-head">
      <h1 tabindex="-1">${status?.session_id || id}</h1>
      <span role="status">${!status ? "" : run.hasEnded ? html`<${Badge} status=${status.status} />`
        : answering.length ? html`<${Badge} status="running" />` : html`<span class="hint">Ready</span>`}</span>
      <${Meta} facts=${[status?.agent, status?.model, status?.cost && money(status.cost), queue.length && `${plural(queue.length, "message")} queued`]} />
      <p class="actions">
        <a href=${addressOf("runs", id)}>Details</a>
        ${status && !run.hasEnded && may("abort") && html`<${Action} class="danger" act=${() => close(run)}>Close<//>`}</p>
    </header>
    ${status && html`<${Earlier} run=${run} session=${status.session_id} />`}
    <${Log} log=${run.log} isChat />
    <div class="waiting">
      ${error && html`<p class="error">${error}</p>`}
      <${Asks} entries=${run.waiting.value} onDecided=${() => run.refreshSoon()} />
    </div>
    ${status && !status.question && !isCut(id) && may("send") && html`<${Composer} label="Message" submit="Send" submitClass="primary" act=${send} />`}
  </article>`;
}

/** What the agent remembers, if the stream no longer has the beginning of the chat. */
function Earlier({ run, session }) {
  const found = useSignal(null);
  if (!run.log.length.value || run.log.isWhole) return null;
  const read = async (event) => {
    if (!event.currentTarget.open || found.value) return;
    try {
      found.value = (await request(`${chatPath(session)}?${new URLSearchParams(ownerOf(run.id))}`)).messages;
    } catch (error) {
      complain(error);
    }
  };
  return html`<details onToggle=${read}><summary>What the agent remembers</summary>
    <ol class="remembered">${found.value?.filter(({ role, content }) => typeof content === "string" && content && ["user", "assistant"].includes(role)).map(
      ({ role, content }) => html`<li class=${role === "user" ? "message" : "said"}>
        <${Long} text=${content} draw=${(text) => (role === "user" ? html`<p class="text">${text}</p>` : html`<${Markdown} text=${text} />`)} /></li>`)}</ol></details>`;
}

async function close(run) {
  const given = await askForm("Close the chat", html`
    <p class="hint">The next message begins a new conversation, which has the session's memories.</p>
    <${Field} label="Reason"><input name="reason" autocomplete="off" /><//>`, "Close the chat", { isDangerous: true });
  if (given) await run.send("/abort", given);
}

/** Return whose chat it is. The run ID of a chat with an owner is chat-TENANT%3AUSER%3ASESSION. */
function ownerOf(id) {
  const names = id.slice("chat-".length).split("%3A").map((part) => part.replaceAll("%2F", "/").replaceAll("%25", "%"));
  const [tenant, user] = names.length === 3 ? names : [];
  return { ...(tenant && { tenant }), ...(user && { user_id: user }) };
}

/** Whether the ID is too long to name the owner. */
const isCut = (id) => /%23[0-9a-f]{32}$/.test(id);
