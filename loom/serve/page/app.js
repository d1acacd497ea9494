// The page: finds out who the person is, and shows the view that the address names. Start reading here.
//
//   api.js      requests, the token, and a run's events, which resume after a lost connection
//   runs.js     the list of runs
//   run.js      one run, live; run_log.js is its log
//   inbox.js    what waits for a person in all runs; asks.js is one such card, with its diff
//   start.js    the form that starts a run
//   dom.js      elements, dialogs, and text that stays text

import { Problem, every, isSignedIn, request, signOut } from "./api.js";
import { button, element, fill } from "./dom.js";
import { inboxView } from "./inbox.js";
import { runView } from "./run.js";
import { runsView } from "./runs.js";
import { startView } from "./start.js";

const COUNT_EVERY = 10_000;
const main = document.getElementById("main");
let leaving = new AbortController();
let me = null;

function showConnection(isThere) {
  const line = document.getElementById("connection");
  line.hidden = isThere;
  fill(line, isThere ? "" : "The service doesn't answer. Trying again…");
}

function showWaiting(number) {
  const shown = document.getElementById("waiting");
  shown.hidden = number === 0;
  fill(shown, String(number));
  document.title = number ? `(${number}) Loom` : "Loom";
}

async function countWaiting() {
  if (location.hash === "#/inbox") return; // it counts itself
  const answer = await request("/v1/approvals").catch(() => null);
  if (answer) showWaiting(answer.waiting.length);
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [, view, name] = location.hash.split("/");
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${view}` || (!view && link.hash === "#/runs")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const context = { me, signal, showConnection, showWaiting };
  const shown = view === "runs" && name ? runView(main, decodeURIComponent(name), context)
    : view === "inbox" ? inboxView(main, context)
    : view === "start" ? startView(main, context)
    : runsView(main, context);
  main.querySelector("h1")?.focus({ preventScroll: true });
  window.scrollTo(0, 0);
  await shown;
}

async function begin() {
  while (me === null) {
    try {
      me = await request("/v1/me");
    } catch (error) {
      fill(main, element("p", { class: "error" }, error.message), button("Try again", () => location.reload()));
      if (error instanceof Problem && error.status < 500) return;
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
  fill(document.getElementById("who"), `${me.name} · ${me.role}${me.tenant ? ` · ${me.tenant}` : ""}`,
    isSignedIn() ? button("Sign out", signOut, { class: "quiet" }) : null);
  document.getElementById("start-link").hidden = !me.may.includes("start");
  window.addEventListener("hashchange", show);
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  show();
  window.addEventListener("decided", countWaiting);
  every(COUNT_EVERY, new AbortController().signal, countWaiting);
}

begin();
