// A run's events as entries of a log: text as it streams, tool calls with their outcome, messages and decisions. An event
// changes only its own entry, and what has changed is drawn once a frame, so that a long run stays quick.

import { count, duration, money, plural, shortened, textOf } from "./text.js";
import { batch, signal } from "./vendor/signals.js";

const LONGEST_OUTPUT = 20_000;

/** Entries have a `kind`, which `log.js` draws, a `number`, the `run` that they are about, and `changes`, a signal. */
export class RunLog {
  constructor(runId) {
    this.runId = runId;
    this.entries = [];
    this.isWhole = true; // with the first event
    this.length = signal(0); // of the entries that are drawn
    this.answers = new Map(); // by run and turn
    this.calls = new Map(); // by run, turn and call
    this.latestCalls = new Map(); // by run and call
    this.changed = new Set();
    this.lastRun = runId;
    this.lastText = "";
  }

  apply(event) {
    if (!this.entries.length && event.offset > 1) {
      this.isWhole = false;
      this.note(event, "Earlier events are no longer in the stream.");
    }
    const given = event.parameters ?? {};
    switch (event.action) {
      case "node.start": return this.add(event, "task", { text: given.task ?? "", facts: [given.agent, given.model, given.workspace] });
      case "node.turn": return this.add(event, "turn", { turn: given.to, before: given.from, phase: given.phase });
      case "node.thinking": return this.change(this.answer(event, given), (answer) => { answer.text += given.content; });
      case "node.reasoning": return this.change(this.answer(event, given), (answer) => { answer.thoughts += given.content; });
      case "node.segment_reset": return this.change(this.answer(event, given), (answer) => { answer.text = answer.thoughts = ""; });
      case "node.model_call": return this.modelCall(event, given);
      case "node.approval_requested": return this.change(this.call(event, given), (call) => requested(call, given));
      case "node.approval_decided": return this.change(this.call(event, given), (call) => decided(call, given));
      case "node.tool_call": return this.change(this.call(event, given), (call) => begun(call, given, event));
      case "node.tool_progress": return this.change(this.call(event, given), (call) => {
        if (call.output.length < LONGEST_OUTPUT) call.output += given.content;
      });
      case "node.tool_result": return this.change(this.call(event, given), (call) => ended(call, event));
      case "node.message": return this.add(event, "message", { by: given.by || event.source_agent, text: given.text ?? given.content ?? "" });
      case "node.answer": return this.answered(event);
      case "node.complete":
      case "node.error": return this.end(event);
      default: return this.note(event, noteOf(event, given));
    }
  }

  /** Add an entry, below the name of the sub-agent that it is about, if that changes. */
  add(event, kind, content) {
    if (event.run_id !== this.lastRun) {
      this.lastRun = event.run_id;
      this.append(event, "source", {});
    }
    return this.append(event, kind, content);
  }

  append(event, kind, content) {
    const entry = {
      kind, number: this.entries.length, run: event.run_id, isOwn: event.run_id === this.runId, at: event.created_at,
      changes: signal(0), ...content,
    };
    this.entries.push(entry);
    this.drawSoon();
    return entry;
  }

  change(entry, how) {
    how(entry);
    this.changed.add(entry);
    this.drawSoon();
  }

  drawSoon() {
    this.drawing ??= requestAnimationFrame(() => {
      this.drawing = null;
      batch(() => {
        for (const entry of this.changed) entry.changes.value += 1;
        this.length.value = this.entries.length;
      });
      this.changed.clear();
    });
  }

  note(event, text, status = null) {
    this.add(event, "note", { text, status });
  }

  answer(event, given) {
    const key = `${event.run_id} ${given.turn}`;
    if (!this.answers.has(key)) this.answers.set(key, this.add(event, "said", { text: "", thoughts: "", facts: "", isGrowing: true }));
    return this.answers.get(key);
  }

  /** The answer is complete: show exactly what is stored. */
  modelCall(event, given) {
    const facts = [given.model, `${count(given.tokens)} tokens`, given.cost === null ? null : money(given.cost),
      duration(given.ms / 1000), given.attempt > 1 ? `attempt ${given.attempt}` : null].filter(Boolean).join(" · ");
    if (given.purpose || event.status === "failed" || event.status === "error") {
      return this.note(event, given.purpose ? `${given.purpose} · ${facts}` : facts, event.status);
    }
    const answer = this.answer(event, given);
    this.change(answer, () => {
      answer.text = event.result?.content ?? answer.text;
      answer.facts = facts;
      answer.isGrowing = false;
    });
    if (answer.isOwn && answer.text) this.lastText = answer.text;
  }

  call(event, given) {
    const latest = `${event.run_id} ${given.call_id}`;
    const key = `${event.run_id} ${given.turn} ${given.call_id}`;
    let call = given.turn === undefined ? this.latestCalls.get(latest) : this.calls.get(key);
    if (!call) {
      call = this.add(event, "call", { tool: given.tool, summary: "", given: null, status: null, decision: "", output: "", begun: null, seconds: null });
      this.calls.set(key, call);
      this.latestCalls.set(latest, call);
    }
    return call;
  }

  /** A chat has answered a message. Its text is what the agent said last. */
  answered(event) {
    const { status, output, error } = event.result ?? {};
    if (error) this.add(event, "note", { text: `${error.type}: ${error.message}`, status });
    else if (output && output !== this.lastText) this.add(event, "said", { text: output, thoughts: "", facts: "", isGrowing: false });
  }

  end(event) {
    const result = event.result ?? {};
    const error = result.error ?? event.parameters?.error;
    const after = result.turns ? ` after ${plural(result.turns, "turn")}` : "";
    this.add(event, "end", {
      status: result.status ?? event.status,
      facts: after + (result.cost === null || result.cost === undefined ? "" : ` · ${money(result.cost)}`),
      error: !error || typeof error === "string" ? error : `${error.type}: ${error.message}`,
      text: event.run_id === this.runId && result.output !== this.lastText ? result.output ?? "" : "",
      structured: event.run_id === this.runId ? result.structured_output ?? null : null,
    });
  }
}

function requested(call, given) {
  describe(call, given);
  call.status = "pending";
  call.decision = `Waits for approval: ${given.reason}`;
}

function decided(call, given) {
  const by = given.by ? ` by ${given.by}` : "";
  const how = [given.edited ? "with changed arguments" : "", given.scope === "run" ? "for the run" : ""].filter(Boolean);
  call.status = given.approved ? "approved" : "denied";
  call.decision = `${given.approved ? "Approved" : "Denied"}${by} ${how.join(", ")}`.trim() + (given.reason ? `: ${given.reason}` : "");
}

function begun(call, given, event) {
  describe(call, given);
  call.status = event.status;
  call.begun = Date.parse(event.created_at);
  call.isRunning = given.attempt !== 0;
  if (given.attempt > 1) call.output = "";
}

function ended(call, event) {
  const result = event.result ?? {};
  const seconds = result.metadata?.execution_time ?? (Date.parse(event.created_at) - call.begun) / 1000;
  call.status = event.status;
  call.isRunning = false;
  if (event.parameters.attempt !== 0) call.seconds = seconds;
  call.output = shortened(textOf(result.content), LONGEST_OUTPUT);
}

function describe(call, { arguments: given, summary, tool }) {
  call.given = given;
  call.summary = summary?.startsWith(`${tool}: `) ? summary.slice(tool.length + 2) : summary ?? briefly(given);
}

function briefly(given) {
  const first = Object.values(given ?? {})[0];
  return typeof first === "string" ? first.split("\n")[0].slice(0, 120) : "";
}

const NOTES = {
  "node.paused": "Paused", "node.resumed": "Resumed", "node.retried": "Retried", "node.ignored": "Had no effect",
  "node.budget": "Budget", "node.compression": "Compressed the conversation", "node.fallback": "Another model took over",
  "node.planning": "Plan", "node.parked": "Waits", "node.unparked": "Continues", "execute": "Delegated",
  "tool.registered": "Created a tool", "node.hook": "Hook", "node.manifest": "Definitions differ",
};
const UNSAID = ["turn", "attempt", "text", "message", "description", "task"];

/** One line about an event without a form of its own: its name, and its parameters that are text or numbers. */
function noteOf(event, given) {
  const words = given.text ?? given.message ?? given.description ?? given.task;
  const facts = Object.entries(given)
    .filter(([name, value]) => !UNSAID.includes(name) && ["string", "number"].includes(typeof value) && value !== "")
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  return [NOTES[event.action] ?? event.action, words, facts.join(", ")].filter((part) => part).join(" · ");
}
