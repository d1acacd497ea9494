// The page: finds out who the person is, and shows the view that the address names. Start reading here.
//
//   runs.js, start.js      the list of runs, and the form that starts one
//   run.js                 one run, live: log.js is its log, asks.js what waits for a person, steering.js its buttons
//   chats.js, chat.js      the list of chats, and one of them
//   inbox.js, costs.js     what waits in all runs, and what runs cost
//   watched_run.js         a run's events and status, as long as a view shows it; run_log.js turns events into entries
//   api.js                 requests, the token, and event streams, which resume after a lost connection
//   html.js, markdown.js   templates, and what models write: nothing that a model or tool says is run or fetched
//   elements.js, dialogs.js, state.js, text.js

import { Problem, isSignedIn, request, signOut, usePolled } from "./api.js";
import { Chat } from "./chat.js";
import { Chats } from "./chats.js";
import { Costs } from "./costs.js";
import { Dialogs } from "./dialogs.js";
import { html } from "./html.js";
import { Inbox } from "./inbox.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { Start } from "./start.js";
import { addressOf, isConnected, may, me, place, problem, said, waiting } from "./state.js";
import { useEffect, useLayoutEffect } from "./vendor/hooks.js";
import { render } from "./vendor/preact.js";
import { useSignal } from "./vendor/signals.js";

const COUNT_EVERY = 10_000;
const AGAIN_AFTER = 2000;
const VIEWS = { runs: { list: Runs, one: Run }, inbox: { list: Inbox }, chats: { list: Chats, one: Chat }, costs: { list: Costs }, start: { list: Start } };
const LINKS = { runs: "Runs", inbox: "Inbox", chats: "Chats", costs: "Costs" };

function Page() {
  const skip = (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <${Header} />
    <p class="connection" role="status" hidden=${isConnected.value}>${!isConnected.value && "The service doesn't answer. Trying again…"}</p>
    <main id="main" tabindex="-1">${me.value ? html`<${View} />` : html`<${Entrance} />`}</main>
    <p class="unseen" aria-live="polite"><span key=${said.value.number}>${said.value.text}</span></p>
    <div class="alerts" role="alert">${problem.value !== null && html`<p>${problem.value}${" "}
      <button type="button" class="quiet" onClick=${() => { problem.value = null; }}>Dismiss</button></p>`}</div>
    <${Dialogs} />`;
}

function Header() {
  const [view] = viewed();
  return html`<header class="bar">
    <span class="brand">Loom</span>
    ${me.value && html`<nav aria-label="Main">
      ${Object.entries(LINKS).map(([name, label]) => html`<a href=${addressOf(name)} aria-current=${name === view ? "page" : null}>
        ${label}${name === "inbox" && html`<${Waiting} />`}</a>`)}
      ${may("start") && html`<a href=${addressOf("start")} aria-current=${view === "start" ? "page" : null}>Start a run</a>`}</nav>
    <span class="who">${me.value.name} · ${me.value.role}${me.value.tenant && ` · ${me.value.tenant}`}
      ${isSignedIn() && html` <button type="button" class="quiet" onClick=${signOut}>Sign out</button>`}</span>`}
  </header>`;
}

function Waiting() {
  usePolled(COUNT_EVERY, async (signal) => {
    if (viewed()[0] === "inbox") return; // it counts itself
    waiting.value = (await request("/v1/inbox", { signal })).waiting.length;
  });
  useEffect(() => { document.title = waiting.value ? `(${waiting.value}) Loom` : "Loom"; }, [waiting.value]);
  return waiting.value > 0 && html` <span id="waiting" class="count">${waiting.value}</span>`;
}

/** Return the name of the view that the address names, and what it shows. */
function viewed() {
  const [, view, name] = place.value.split("/");
  return [Object.hasOwn(VIEWS, view) ? view : "runs", name ? decoded(name) : null];
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

function View() {
  const opened = useSignal(0);
  const [view, name] = viewed();
  useLayoutEffect(() => {
    window.scrollTo(0, 0);
    document.querySelector("main h1")?.focus({ preventScroll: true });
  }, [place.value]);
  const { list, one } = VIEWS[view];
  const key = `${place.value} ${opened.value}`;
  return name !== null && one ? html`<${one} key=${key} name=${name} reopen=${() => { opened.value += 1; }} />` : html`<${list} key=${key} />`;
}

/** Find out who the person is. */
function Entrance() {
  const error = useSignal(null);
  useEffect(() => {
    (async () => {
      while (me.value === null) {
        try {
          me.value = await request("/v1/me");
        } catch (refusal) {
          error.value = refusal;
          if (refusal instanceof Problem && refusal.status < 500) return;
          await new Promise((resolve) => { setTimeout(resolve, AGAIN_AFTER); });
        }
      }
    })();
  }, []);
  return html`<h1 tabindex="-1" class="unseen">Loom</h1>
    ${error.value && html`<p class="error">${error.value.message}</p>
    <button type="button" onClick=${() => location.reload()}>Try again</button>`}`;
}

const page = document.createElement("div");
document.body.prepend(page);
render(html`<${Page} />`, page);
