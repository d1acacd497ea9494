// The log of a run on the screen. It draws the newest entries, and earlier ones when the person asks for them.

import { Arguments, changeIn, Effect } from "./effect.js";
import { Badge, Long, Meta, RunLink } from "./elements.js";
import { html } from "./html.js";
import { Markdown } from "./markdown.js";
import { now } from "./state.js";
import { count, duration, jsonOf } from "./text.js";
import { useEffect, useRef } from "./vendor/hooks.js";
import { useSignal } from "./vendor/signals.js";

const SHOWN = 300;
const NEAR = 60; // pixels from the end

/** `onFork`, if the person may fork, is called with a turn's number. A chat is shown without turns and figures. */
export function Log({ log, onFork = null, isChat = false }) {
  const isAtEnd = useEnd();
  const first = useRef(0);
  const asked = useSignal(0); // the number of times that earlier entries were asked for
  const length = log.length.value;
  if (!asked.value && isAtEnd.value) first.current = Math.max(0, length - SHOWN);
  useEffect(() => { if (isAtEnd.value) asked.value = 0; }, [isAtEnd.value]);
  const showEarlier = () => {
    isAtEnd.value = false;
    first.current = Math.max(0, first.current - (length - first.current)); // as many again
    asked.value += 1;
  };
  return html`<div class=${isChat ? "log chat" : "log"} role="log" aria-live="off" aria-label=${isChat ? "Conversation" : "What the run has done"}>
    ${first.current > 0 && html`<p><button type="button" class="quiet" onClick=${showEarlier}>
      Show earlier entries</button> <span class="hint">${count(first.current)} more</span></p>`}
    <ol>${log.entries.slice(first.current, length).map((entry) => html`
      <${Entry} key=${entry.number} ...${{ entry, above: log.runId, onFork }} />`)}</ol>
  </div>`;
}

/** Keep the end of the page in sight while it grows, unless the person has scrolled away from it. */
function useEnd() {
  const isAtEnd = useSignal(true);
  useEffect(() => {
    const page = document.scrollingElement;
    const leaving = new AbortController();
    const grown = new ResizeObserver(() => { if (isAtEnd.value) page.scrollTop = page.scrollHeight; });
    let top = 0;
    const look = () => {
      const isNear = page.scrollHeight - page.scrollTop - page.clientHeight < NEAR;
      if (isNear || page.scrollTop < top) isAtEnd.value = isNear; // it may also have grown since it was scrolled
      top = page.scrollTop;
    };
    grown.observe(document.getElementById("main"));
    window.addEventListener("scroll", look, { passive: true, signal: leaving.signal });
    return () => { grown.disconnect(); leaving.abort(); };
  }, []);
  return isAtEnd;
}

const VIEWS = { source: Source, task: Task, turn: Turn, said: Said, call: Call, message: Message, note: Note, end: End };

function Entry({ entry, above, onFork }) {
  void entry.changes.value;
  return html`<li class=${entry.isOwn ? entry.kind : `${entry.kind} below`} title=${TIMED.has(entry.kind) ? timeOf(entry) : null}>
    <${VIEWS[entry.kind]} ...${entry} above=${above} onFork=${onFork} /></li>`;
}

const TIMED = new Set(["turn", "message", "note"]);
const timeOf = (entry) => new Date(entry.at).toLocaleString();

function Source({ run, isOwn, above }) {
  return isOwn ? "This run" : html`Sub-agent <${RunLink} id=${run} text=${run.startsWith(`${above}/`) ? run.slice(above.length + 1) : run} />`;
}

const plain = (text) => html`<p class="text">${text}</p>`;
const marked = (text) => html`<${Markdown} text=${text} />`;
const code = (text) => html`<div class="code">${text}</div>`;

function Task({ text, facts }) {
  return html`<${Long} text=${text} draw=${plain} /><${Meta} facts=${facts} />`;
}

function Turn({ turn, before, phase, isOwn, onFork }) {
  return html`<h2>Turn ${turn}${phase && ` · ${phase}`}</h2>
    ${onFork && isOwn && before > 0 && html`<button type="button" class="quiet" onClick=${() => onFork(before)}>
      Fork after turn ${before}</button>`}`;
}

function Said({ text, thoughts, facts, isGrowing }) {
  return html`
    ${thoughts && html`<details class="reasoning"><summary>Thinking</summary><${Long} text=${thoughts} draw=${plain} /></details>`}
    ${text && (isGrowing ? html`<${Markdown} text=${text} isGrowing />` : html`<${Long} text=${text} draw=${marked} />`)}
    ${facts && html`<p class="meta">${facts}</p>`}`;
}

function Call({ tool, summary, given, status, decision, output, seconds, isRunning, begun }) {
  const isOpen = useSignal(false);
  const time = seconds ?? (isRunning ? Math.max(0, (now.value - begun) / 1000) : null);
  return html`<details onToggle=${(event) => { isOpen.value = event.currentTarget.open; }}>
    <summary>
      <span class="tool">${tool}</span><span class="call-summary">${summary}</span>
      <span class="state">${status && html`<${Badge} status=${status} />`}</span>
      ${Number.isFinite(time) && html`<span class="meta">${duration(time)}</span>`}
    </summary>
    ${isOpen.value && html`<div>${changeIn(tool, given) === null ? html`<${Arguments} given=${given} />`
      : html`<${Effect} tool=${tool} given=${given} />`}</div>
      ${decision && html`<p class="hint">${decision}</p>`}
      ${output && html`<div class="code output" tabindex="0" role="group" aria-label="Result">${output}</div>`}`}
  </details>`;
}

function Message({ by, text }) {
  return html`<p class="meta">${by}</p><${Long} text=${text} draw=${plain} />`;
}

function Note({ text, status }) {
  return html`${status && html`<${Badge} status=${status} /> `}${text}`;
}

function End({ status, facts, error, text, structured }) {
  return html`<p><${Badge} status=${status} />${facts}</p>
    ${error && html`<p class="error">${error}</p>`}
    ${text && html`<${Long} text=${text} draw=${marked} />`}
    ${structured !== null && html`<${Long} text=${jsonOf(structured)} draw=${code} />`}`;
}
