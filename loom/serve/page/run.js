// One run, live: its log, what waits for a person, its budget, its sub-agents, and what a person may do with it.

import { Problem, blobOf, every, follow, post, request, runPath } from "./api.js";
import { Asks, submitOnEnter } from "./asks.js";
import { ask, askForm, badge, button, complain, count, element, field, fill, meta, money, perform, reconcile, runLink } from "./dom.js";
import { RunLog } from "./run_log.js";

const ENDED = ["completed", "aborted", "limit_reached", "budget_exhausted", "failed"];
const REFRESH = 5000;
const SOON = 250;
const LONGEST_SHOWN = 200_000;
const NARROW = matchMedia("(max-width: 48rem)"); // as in app.css

export async function runView(main, runId, { me, signal, showConnection }) {
  const view = new RunView(runId, me);
  fill(main, view.element);
  view.arrange();
  NARROW.addEventListener("change", () => view.arrange(), { signal });
  await Promise.all([
    every(REFRESH, signal, () => view.refresh()),
    follow(runId, {
      signal,
      onEvent: (event) => view.apply(event),
      onStatus: () => view.refreshSoon(),
      onConnection: (isThere) => {
        showConnection(isThere);
        if (isThere) view.refreshSoon();
      },
    }).then(() => view.refresh(), (error) => view.fail(error)),
  ]);
}

class RunView {
  constructor(runId, me) {
    this.runId = runId;
    this.me = me;
    this.log = new RunLog(runId, { onFork: me.may.includes("fork") ? (turn) => this.fork(turn) : null });
    this.asks = new Asks(me, { showRun: false, onDecided: () => this.decided() });
    this.state = element("span", { role: "status" });
    this.actions = element("p", { class: "actions" });
    this.facts = element("dl", { class: "facts" });
    this.children = element("ul", { class: "tree" });
    this.tree = element("section", { hidden: true }, element("h2", {}, "Sub-agents"), this.children);
    this.artifacts = element("ul", { class: "artifacts" });
    this.error = element("p", { class: "error", hidden: true });
    this.waiting = element("div", { class: "waiting" }, this.error, this.asks.element);
    this.brief = element("summary", {}, "About the run");
    this.about = element("details", { class: "about" }, this.brief, this.facts, this.tree,
      element("details", { ontoggle: (event) => { if (event.target.open) this.listArtifacts(); } },
        element("summary", {}, "Artifacts"), this.artifacts));
    this.composer = me.may.includes("send") ? this.messageForm() : null;
    this.main = element("div", { class: "run-main" }, this.log.element, this.composer);
    this.side = element("aside", { "aria-label": "About the run" }, this.about);
    this.element = element("article", { class: "run" },
      element("header", { class: "run-head" },
        element("h1", { tabindex: "-1" }, runId), this.state, this.actions),
      this.main);
  }

  /** Put what waits for a person below the log, where the run goes on, or above it, where a small screen shows it first. */
  arrange() {
    this.about.open = !NARROW.matches;
    if (NARROW.matches) this.main.prepend(this.waiting, this.side);
    else {
      this.log.element.after(this.waiting);
      this.element.append(this.side);
    }
  }

  apply(event) {
    const follows = this.followsLog();
    this.log.apply(event);
    if (follows) this.scrollSoon();
    if (!["node.thinking", "node.reasoning", "node.tool_progress"].includes(event.action)) this.refreshSoon();
  }

  /** Whether the person looks at the end of the log, and not at what waits above it. */
  followsLog() {
    const { scrollHeight, scrollTop, clientHeight } = document.scrollingElement;
    const looksAtAsks = NARROW.matches && this.asks.element.childElementCount > 0
      && this.waiting.getBoundingClientRect().bottom > 0;
    return !looksAtAsks && scrollHeight - scrollTop - clientHeight < 60;
  }

  scrollSoon({ toTop = false } = {}) {
    this.toTop ||= toTop;
    this.scrolling ??= requestAnimationFrame(() => {
      const page = document.scrollingElement;
      page.scrollTop = this.toTop ? 0 : page.scrollHeight;
      this.scrolling = null;
      this.toTop = false;
    });
  }

  decided() {
    if (!this.asks.element.childElementCount) this.scrollSoon();
    this.refreshSoon();
  }

  refreshSoon() {
    this.refreshing ??= setTimeout(() => {
      this.refreshing = null;
      this.refresh();
    }, SOON);
  }

  async refresh() {
    if (this.status && ENDED.includes(this.status.status) && !this.refreshing && this.isSettled) return;
    try {
      const [status, { waiting }] = await Promise.all([request(runPath(this.runId)), request(runPath(this.runId, "/approvals"))]);
      this.isSettled = ENDED.includes(status.status);
      this.show(status, waiting);
    } catch (error) {
      if (error instanceof Problem) this.fail(error);
    }
  }

  show(status, waiting) {
    const had = this.asks.element.childElementCount;
    this.status = status;
    this.error.hidden = !status.error && !status.parked;
    if (status.error) fill(this.error, `${status.error.type}: ${status.error.message}`);
    else if (status.parked) fill(this.error, `Waits for the ${status.parked.waiting_on}: ${status.parked.error?.message ?? ""} `, status.parked.way_out ?? "");
    fill(this.state, badge(status.status), status.stale ? " No worker answers" : null);
    this.showActions(status);
    this.showFacts(status);
    this.tree.hidden = !status.children.length;
    showChildren(this.children, status.children);
    if (this.composer) this.composer.hidden = ENDED.includes(status.status) || Boolean(status.question);
    const follows = this.followsLog();
    this.asks.update(waiting);
    if (this.asks.element.childElementCount > had && follows) this.scrollSoon({ toTop: NARROW.matches });
  }

  showActions(status) {
    const hasEnded = ENDED.includes(status.status);
    const offered = [
      ["pause", "Pause", !hasEnded && status.status !== "paused", (event) => this.steer("/pause", event)],
      ["resume", "Resume", status.status === "paused", (event) => this.steer("/resume", event)],
      ["retry", "Retry", (hasEnded && status.status !== "completed") || Boolean(status.parked), () => this.retry()],
      ["fork", "Fork", Boolean(status.turn), () => this.fork(status.turn)],
      ["abort", "Abort", !hasEnded, () => this.abort()],
    ].filter(([operation, , fits]) => fits && this.me.may.includes(operation));
    const known = offered.map(([operation]) => operation).join();
    if (this.offered === known) return; // the focus stays where it is
    this.offered = known;
    fill(this.actions, offered.map(([operation, label, , act]) =>
      button(label, act, operation === "abort" ? { class: "danger" } : {})),
    this.me.temporal_ui ? element("a", {
      href: this.me.temporal_ui + encodeURIComponent(this.runId), target: "_blank", rel: "noreferrer",
    }, "Open in Temporal") : null);
  }

  showFacts(status) {
    const { budget, usage, context } = status;
    const limited = (name, format) => {
      const { spent, limit } = budget?.[name] ?? {};
      return limit === null || limit === undefined ? format(spent ?? usage?.[name])
        : [`${format(spent)} of ${format(limit)}`, meter(spent, limit)];
    };
    const facts = [
      ["Turn", status.turn === null ? null : [`${status.turn} of ${status.max_turns ?? "–"}`]],
      ["Waits for", status.waiting_on],
      ["Tokens", usage && (budget?.tokens?.limit ? limited("tokens", count) : count(usage.total_tokens))],
      ["Cost", limited("cost_usd", (spent) => money(spent ?? status.cost))],
      ["Tool calls", limited("tool_calls", count)],
      ["Context", context?.tokens ? [`${count(context.tokens)} of ${count(context.window)}`, meter(context.tokens, context.window)] : null],
      ["Agent", status.agent],
      ["Model", status.model],
      ["Tenant", status.tenant],
      ["Part of", this.runId.includes("/") && !status.forked_from
        ? runLink(this.runId.slice(0, this.runId.lastIndexOf("/"))) : null],
      ["Forked from", status.forked_from ? [runLink(status.forked_from.run_id), ` after turn ${status.forked_from.turn}`] : null],
      ["Messages not yet read", status.queued_messages || null],
    ];
    fill(this.brief, "About the run", meta(status.turn === null ? null : `turn ${status.turn}`,
      usage ? `${count(usage.total_tokens)} tokens` : null, status.cost ? money(status.cost) : null));
    fill(this.facts, facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, ...[value].flat()))));
  }

  fail(error) {
    this.error.hidden = false;
    fill(this.error, error.message);
  }

  async steer(path, event) {
    if (await perform(event.target, () => post(runPath(this.runId, path)))) this.refreshSoon();
  }

  async abort() {
    const given = await askForm(`Abort ${this.runId}`, [
      field("Reason", element("input", { name: "reason", autocomplete: "off" }), "It becomes part of the result."),
    ], "Abort the run", { danger: true });
    if (given) await this.send("/abort", given);
  }

  async retry() {
    const given = await askForm("Retry", [
      field("Model", element("input", { name: "model", autocomplete: "off" }), "Empty: the same model."),
      field("Turns at most", element("input", { name: "max_turns", type: "number", min: "1" }), "Empty: the same limit."),
      field("Message", element("textarea", { name: "message", rows: "2" }), "The agent reads it first."),
    ], "Retry");
    if (!given) return;
    const { model, max_turns: turns, message } = given;
    const isDone = await this.send("/retry", {
      ...(model && { model }), ...(turns && { max_turns: Number(turns) }), ...(message && { message }),
    });
    if (isDone && ENDED.includes(this.status.status)) window.dispatchEvent(new HashChangeEvent("hashchange"));
  }

  async fork(turn) {
    const given = await askForm("Fork", [
      field("After turn", element("input", { name: "turn", type: "number", min: "0", value: turn, required: true }),
        "The new run starts from the state after this turn. 0 is the beginning."),
      field("Message", element("textarea", { name: "message", rows: "3" }), "What the agent should do differently."),
    ], "Start the new run");
    if (!given) return;
    try {
      const { run_id: forked } = await post(runPath(this.runId, "/fork"), {
        turn: Number(given.turn), ...(given.message && { message: given.message }),
      });
      location.hash = `#/runs/${encodeURIComponent(forked)}`;
    } catch (error) {
      complain(error);
    }
  }

  async listArtifacts() {
    try {
      const { artifacts } = await request(runPath(this.runId, "/artifacts"));
      fill(this.artifacts, artifacts.length ? artifacts.map(({ id, bytes, name }) => element("li", {},
        button(id, (event) => perform(event.target, () => this.showArtifact(id, name)), { class: "quiet" }),
        meta(`${count(bytes)} bytes ${name}`))) : element("li", { class: "hint" }, "The run has stored none."));
    } catch (error) {
      complain(error);
    }
  }

  async showArtifact(id, name) {
    const content = await blobOf(runPath(this.runId, `/artifacts/${encodeURIComponent(id)}`));
    const isText = content.type.startsWith("text/plain");
    const text = isText ? await content.text() : "This file is no text: download it to see it.";
    const file = URL.createObjectURL(content);
    const isCut = text.length > LONGEST_SHOWN;
    ask(id, (close) => element("div", {},
      element("div", { class: "code", tabindex: "0" }, text.slice(0, LONGEST_SHOWN), isCut ? "\n… download it to see the rest" : null),
      element("p", { class: "actions" }, button("Close", () => close(null)),
        element("a", { href: file, download: name || `${id.replaceAll("/", "_")}${isText ? ".txt" : ""}`, class: "button" }, "Download")),
    )).then(() => URL.revokeObjectURL(file));
  }

  async send(path, body) {
    try {
      await post(runPath(this.runId, path), body);
      this.refreshSoon();
      return true;
    } catch (error) {
      complain(error);
      return false;
    }
  }

  messageForm() {
    const text = element("textarea", {
      name: "text", rows: "1", required: true, placeholder: "Message to the agent", "aria-label": "Message to the agent",
      onkeydown: submitOnEnter,
    });
    const send = element("button", { type: "submit" }, "Send");
    return element("form", {
      class: "composer",
      hidden: true,
      onsubmit: async (event) => {
        event.preventDefault();
        if (await perform(send, () => post(runPath(this.runId, "/messages"), { text: text.value }))) text.value = "";
        this.refreshSoon();
      },
    }, text, send);
  }
}

/** How much of a limit is used. */
function meter(spent, limit) {
  const shown = element("meter", { min: "0", max: String(limit), high: String(limit * 0.8), optimum: "0" });
  shown.value = spent ?? 0;
  return shown;
}

function showChildren(list, children) {
  reconcile(list, children, (child) => child.run_id, (child) => {
    const made = element("li", {}, element("p", { class: "child" }), element("p", { class: "hint" }, child.description));
    if (!child.sub_agents) return made;
    const below = element("ul", { class: "tree" });
    made.append(element("details", {
      ontoggle: async (event) => {
        if (!event.target.open) return;
        try {
          showChildren(below, (await request(runPath(child.run_id))).children);
        } catch (error) {
          complain(error);
        }
      },
    }, element("summary", {}, "Its sub-agents"), below));
    return made;
  }, (made, child) => fill(made.querySelector(".child"),
    runLink(child.run_id, child.run_id.slice(child.run_id.lastIndexOf("/") + 1)), " ", badge(child.status),
    meta(`turn ${child.turn}`, child.cost === null ? null : money(child.cost))));
}
