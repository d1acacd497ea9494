// A run's events as a log: text as it streams, tool calls with their outcome, messages and decisions. Each event changes
// only its own entry, so a long run stays quick.

import { argumentsView } from "./asks.js";
import { badge, button, count, duration, element, fill, meta, money, runLink, visible } from "./dom.js";

const LONGEST_OUTPUT = 20_000;

export class RunLog {
  /** `onFork`, if the person may fork, is called with a turn's number. */
  constructor(runId, { onFork }) {
    this.runId = runId;
    this.onFork = onFork;
    this.element = element("ol", { class: "log", role: "log", "aria-label": "What the run has done" });
    this.segments = new Map();
    this.calls = new Map();
    this.lastRun = runId;
    this.lastText = "";
    this.events = 0;
  }

  apply(event) {
    if (this.events++ === 0 && event.offset > 1) this.note(event, "Earlier events are no longer in the stream.");
    const given = event.parameters ?? {};
    switch (event.action) {
      case "node.start": return this.started(event, given);
      case "node.turn": return this.turn(event, given);
      case "node.thinking": return this.segment(event, given).add(given.content);
      case "node.reasoning": return this.segment(event, given).reason(given.content);
      case "node.segment_reset": return this.segment(event, given).reset();
      case "node.model_call": return this.modelCall(event, given);
      case "node.tool_call": return this.call(event, given).begin(given, event);
      case "node.tool_progress": return this.call(event, given).progress(given.content);
      case "node.tool_result": return this.call(event, given).end(event);
      case "node.approval_requested": return this.call(event, given).requested(given);
      case "node.approval_decided": return this.call(event, given).decided(given);
      case "node.message": return this.message(event, given);
      case "node.complete":
      case "node.error": return this.ended(event);
      default: return this.note(event, noteOf(event, given));
    }
  }

  /** Add an entry, below the name of the sub-agent that it is about, if that changes. */
  add(event, entry) {
    const isOwn = event.run_id === this.runId;
    if (event.run_id !== this.lastRun) {
      this.lastRun = event.run_id;
      this.element.append(element("li", { class: isOwn ? "source" : "source below" },
        isOwn ? "This run" : ["Sub-agent ", runLink(event.run_id, nameBelow(event.run_id, this.runId))]));
    }
    if (!isOwn) entry.classList.add("below");
    this.element.append(entry);
    return entry;
  }

  note(event, ...content) {
    this.add(event, element("li", { class: "note", title: timeOf(event) }, ...content));
  }

  started(event, given) {
    this.add(event, element("li", { class: "task" },
      element("p", { class: "text" }, given.task),
      meta(given.agent, given.model, given.workspace)));
  }

  turn(event, given) {
    this.add(event, element("li", { class: "turn", title: timeOf(event) },
      element("h3", {}, `Turn ${given.to}`, given.phase ? ` · ${given.phase}` : null),
      this.onFork && event.run_id === this.runId && given.from > 0
        ? button(`Fork after turn ${given.from}`, () => this.onFork(given.from), { class: "quiet" }) : null));
  }

  segment(event, given) {
    const key = `${event.run_id} ${given.turn}`;
    let segment = this.segments.get(key);
    if (!segment) {
      segment = new Segment();
      this.segments.set(key, segment);
      this.add(event, segment.element);
    }
    return segment;
  }

  modelCall(event, given) {
    const facts = [given.model, `${count(given.tokens)} tokens`, given.cost === null ? null : money(given.cost),
      duration(given.ms / 1000), given.attempt > 1 ? `attempt ${given.attempt}` : null].filter(Boolean);
    if (given.purpose || event.status === "failed" || event.status === "error") {
      this.note(event, given.purpose ? `${given.purpose} · ` : "", badge(event.status), " ", facts.join(" · "));
      return;
    }
    const segment = this.segment(event, given);
    segment.settle(event.result?.content, facts.join(" · "));
    if (event.run_id === this.runId && segment.text) this.lastText = segment.text;
  }

  call(event, given) {
    let key = `${event.run_id} ${given.turn} ${given.call_id}`;
    if (given.turn === undefined) key = [...this.calls.keys()].reverse().find((known) => isCall(known, event, given)) ?? key;
    let call = this.calls.get(key);
    if (!call) {
      call = new Call(given.tool);
      this.calls.set(key, call);
      this.add(event, call.element);
    }
    return call;
  }

  message(event, given) {
    this.add(event, element("li", { class: "message", title: timeOf(event) },
      element("p", { class: "meta" }, given.by || event.source_agent),
      element("p", { class: "text" }, given.text ?? given.content ?? "")));
  }

  ended(event) {
    const result = event.result ?? {};
    const isOwn = event.run_id === this.runId;
    const error = result.error ?? event.parameters?.error;
    this.add(event, element("li", { class: "end" },
      element("p", {}, badge(result.status ?? event.status),
        result.turns ? ` after ${result.turns} ${result.turns === 1 ? "turn" : "turns"}` : null,
        result.cost === null || result.cost === undefined ? null : ` · ${money(result.cost)}`),
      error ? element("p", { class: "error" }, typeof error === "string" ? error : `${error.type}: ${error.message}`) : null,
      isOwn && result.output && result.output !== this.lastText ? element("p", { class: "text" }, result.output) : null,
      isOwn && result.structured_output !== null && result.structured_output !== undefined
        ? element("div", { class: "code" }, JSON.stringify(result.structured_output, null, 2)) : null));
  }
}

/** The text of one turn. */
class Segment {
  constructor() {
    this.text = "";
    this.words = element("p", { class: "text" });
    this.facts = element("p", { class: "meta" });
    this.thoughts = element("p", { class: "text" });
    this.thinking = element("details", { class: "reasoning", hidden: true },
      element("summary", {}, "Thinking"), this.thoughts);
    this.element = element("li", { class: "said" }, this.thinking, this.words, this.facts);
  }

  add(content) {
    this.text += content;
    this.words.append(visible(content));
  }

  reason(content) {
    this.thinking.hidden = false;
    this.thoughts.append(visible(content));
  }

  reset() {
    this.text = "";
    fill(this.words);
    fill(this.thoughts);
    this.thinking.hidden = true;
  }

  /** The answer is complete: show exactly what is stored. */
  settle(content, facts) {
    if (typeof content === "string" && content !== this.text) {
      this.reset();
      this.add(content);
    }
    fill(this.facts, facts);
  }
}

/** One tool call. */
class Call {
  constructor(tool) {
    this.state = element("span", { class: "state" });
    this.summary = element("span", { class: "call-summary" });
    this.time = element("span", { class: "meta" });
    this.given = element("div");
    this.decision = element("p", { class: "hint", hidden: true });
    this.output = element("div", { class: "code output", hidden: true });
    this.element = element("li", { class: "call" }, element("details", {},
      element("summary", {}, element("span", { class: "tool" }, tool), this.summary, this.state, this.time),
      this.given, this.decision, this.output));
  }

  requested(given) {
    fill(this.state, badge("pending"));
    this.show(given.arguments, given);
    this.decide(`Waits for approval: ${given.reason}`);
  }

  decided(given) {
    const by = given.by ? ` by ${given.by}` : "";
    const how = [given.edited ? "with changed arguments" : "", given.scope === "run" ? "for the run" : ""].filter(Boolean);
    fill(this.state, badge(given.approved ? "approved" : "denied"));
    this.decide(`${given.approved ? "Approved" : "Denied"}${by} ${how.join(", ")}${given.reason ? `: ${given.reason}` : ""}`.trim());
  }

  begin(given, event) {
    this.begun = Date.parse(event.created_at);
    fill(this.state, badge(event.status));
    this.show(given.arguments, given);
    if (given.attempt > 1) {
      fill(this.output);
      this.output.hidden = true;
    }
  }

  progress(content) {
    this.output.hidden = false;
    if (this.output.textContent.length < LONGEST_OUTPUT) this.output.append(visible(content));
  }

  end(event) {
    const result = event.result ?? {};
    const seconds = result.metadata?.execution_time ?? (Date.parse(event.created_at) - this.begun) / 1000;
    fill(this.state, badge(event.status));
    if (Number.isFinite(seconds) && event.parameters.attempt !== 0) fill(this.time, duration(seconds));
    const content = typeof result.content === "string" ? result.content : JSON.stringify(result.content ?? "", null, 2);
    this.output.hidden = !content;
    fill(this.output, content.slice(0, LONGEST_OUTPUT), content.length > LONGEST_OUTPUT ? "\n… shortened" : null);
  }

  show(given, { summary, tool }) {
    const short = summary?.startsWith(`${tool}: `) ? summary.slice(tool.length + 2) : summary ?? briefly(given);
    fill(this.summary, short);
    fill(this.given, argumentsView(given));
  }

  decide(text) {
    this.decision.hidden = false;
    fill(this.decision, text);
  }
}

function isCall(key, event, given) {
  return key.startsWith(`${event.run_id} `) && key.endsWith(` ${given.call_id}`);
}

function briefly(given) {
  const first = Object.values(given ?? {})[0];
  return typeof first === "string" ? first.split("\n")[0].slice(0, 120) : "";
}

const timeOf = (event) => new Date(event.created_at).toLocaleString();

const nameBelow = (runId, above) => (runId.startsWith(`${above}/`) ? runId.slice(above.length + 1) : runId);

const NOTES = {
  "node.paused": "Paused", "node.resumed": "Resumed", "node.retried": "Retried", "node.ignored": "Had no effect",
  "node.budget": "Budget", "node.compression": "Compressed the conversation", "node.fallback": "Another model took over",
  "node.planning": "Plan", "node.parked": "Waits", "node.unparked": "Continues", "execute": "Delegated",
  "tool.registered": "Created a tool", "node.hook": "Hook", "node.manifest": "Definitions differ", "node.answer": "Answered",
};

/** One line about an event without a form of its own: its name, and its parameters that are text or numbers. */
function noteOf(event, given) {
  const said = given.text ?? given.message ?? given.description ?? given.task;
  const facts = Object.entries(given)
    .filter(([name, value]) => !["turn", "attempt", "text", "message", "description", "task"].includes(name)
      && ["string", "number"].includes(typeof value) && value !== "")
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  return [NOTES[event.action] ?? event.action, said, facts.join(", ")].filter((part) => part).join(" · ");
}
