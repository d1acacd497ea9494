// Chats: their list, and the form that begins one.

import { post, request, usePolled } from "./api.js";
import { Age, Badge, Field, Form } from "./elements.js";
import { html } from "./html.js";
import { AgentChoice } from "./start.js";
import { addressOf, may } from "./state.js";
import { useState } from "./vendor/hooks.js";
import { useSignal } from "./vendor/signals.js";

const REFRESH = 5000;
const MOST = 100;
const PAGES = 5;

export function Chats() {
  const found = useSignal(null);
  usePolled(REFRESH, async (signal) => { found.value = await newest(signal); });
  const { chats, tasks } = found.value ?? { chats: [] };
  return html`<div class="view-head"><h1 tabindex="-1">Chats</h1></div>
    ${may("send") && html`<${Begin} />`}
    <ul class="chats" aria-label="Chats">${chats.map((chat) => html`<li key=${chat.run_id}>
      <a href=${addressOf("chats", chat.run_id)}>${chat.session || chat.run_id}</a>
      <span class="first">${tasks[chat.run_id]}</span>
      <span class="meta"><${Badge} status=${chat.closed_at ? "ended" : chat.status} />
        <span>${chat.agent}</span>${chat.user_id && html`<span>${chat.user_id}</span>`}${
          chat.tenant && html`<span>${chat.tenant}</span>`}<${Age} at=${chat.started_at} /></span></li>`)}</ul>
    ${!chats.length && html`<p class="hint">${found.value ? "There are no chats yet." : "Reading…"}</p>`}`;
}

/** A page may end early, and others then follow. */
async function newest(signal) {
  const chats = [], tasks = {};
  for (let page = 0, next = ""; page < PAGES && next !== null && chats.length < MOST; page++) {
    const cursor = next && `&cursor=${encodeURIComponent(next)}`;
    const found = await request(`/v1/chats?limit=${MOST - chats.length}&tasks=true${cursor}`, { signal });
    chats.push(...found.chats);
    Object.assign(tasks, found.tasks);
    next = found.next;
  }
  return { chats, tasks };
}

function Begin() {
  const [messageId] = useState(newMessageId);
  const begin = async ({ text, agent, session_id: session }) => {
    const [, ...name] = agent.split(" ");
    const { chat } = await post(chatPath(session.trim() || `chat-${messageId}`), {
      text, message_id: messageId, ...(agent && { agent: name.join(" ") }),
    });
    location.hash = addressOf("chats", chat);
  };
  return html`<${Form} class="begin" submit="Start a chat" act=${begin}>
    <${Field} label="Message"><textarea name="text" rows="2" required></textarea><//>
    <div class="beside">
      <${Field} label="Agent"><${AgentChoice} /><//>
      <${Field} label="Name" hint="Leave empty to get a generated name."><input name="session_id" autocomplete="off" /><//>
    </div><//>`;
}

export const chatPath = (session) => `/v1/chats/${encodeURIComponent(session)}/messages`;

/** A message that is sent again with the same ID is answered once. */
export function newMessageId() {
  return crypto.getRandomValues(new Uint32Array(2)).join("-");
}
