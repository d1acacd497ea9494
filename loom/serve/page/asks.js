// What waits for a person: calls to approve or deny, with what they would write, and questions to answer.

import { post, request, runPath } from "./api.js";
import { age, announce, askForm, badge, button, element, field, fill, meta, perform, reconcile, runLink } from "./dom.js";

/** A list of asks, which keeps its cards, and what was typed in them, when it is read again. */
export class Asks {
  constructor(me, { showRun, onDecided }) {
    this.me = me;
    this.showRun = showRun;
    this.onDecided = onDecided;
    this.element = element("ul", { class: "asks", "aria-label": "Waiting for a person" });
    this.decided = new Set();
  }

  update(entries) {
    const waiting = entries.filter((entry) => !this.decided.has(keyOf(entry)));
    const before = this.element.childElementCount;
    reconcile(this.element, waiting, keyOf, (entry) => this.card(entry), updateVotes);
    if (waiting.length > before) announce(`${waiting.length} waiting for a person`);
  }

  card(entry) {
    switch (entry.kind) {
      case "approval": return this.callCard(entry);
      case "question": return this.questionCard(entry);
      default: return this.cardOf(entry, `Waits: ${entry.waiting_on}`,
        element("p", { class: "hint" }, "The run's worker doesn't answer, so nothing more is known."));
    }
  }

  cardOf(entry, title, ...content) {
    return element("li", { class: "ask", tabindex: "-1" },
      element("div", { class: "ask-head" },
        element("h3", {}, title),
        meta(this.showRun ? runLink(entry.run_id) : null, entry.agent, entry.tenant, age(entry.since))),
      ...content);
  }

  callCard(entry) {
    const mayDecide = this.me.may.includes("approve");
    return this.cardOf(entry, entry.tool,
      entry.made_by !== entry.run_id ? element("p", { class: "hint" }, "By sub-agent ", runLink(entry.made_by)) : null,
      entry.question ? element("p", { class: "question" }, entry.question) : null,
      element("p", { class: "why" }, entry.risk ? element("strong", {}, `It ${entry.risk}. `) : null,
        entry.reason && !entry.question ? `Asked because ${entry.reason}.` : null),
      effectOf(entry.tool, entry.arguments, entry.change),
      entry.is_cut ? element("p", { class: "hint" }, "Long arguments are shortened. ",
        button("Show them in full", (event) => this.showFull(entry, event.target), { class: "quiet" })) : null,
      element("p", { class: "votes hint" }),
      mayDecide ? this.callActions(entry) : element("p", { class: "hint" },
        `Your role, ${this.me.role}, may not approve or deny calls.`));
  }

  callActions(entry) {
    const approve = (changes) => async () => {
      const receipt = await post(runPath(entry.run_id, "/approve"), {
        call_id: entry.call_id, digest: entry.digest, ...changes,
      });
      if (receipt.accepted) this.done(entry, "Approved");
      else this.onDecided();
    };
    return element("p", { class: "actions" },
      button("Approve", (event) => perform(event.target, approve({})), { class: "primary" }),
      button("Deny", (event) => this.deny(entry, event.target), { class: "danger" }),
      entry.for_run.length
        ? button("Approve for the run", (event) => perform(event.target, approve({ scope: "run" })),
          { title: `Also approves later calls that match ${entry.for_run.join(", ")}` }) : null,
      button("Change and approve", async (event) => {
        const control = event.target;
        const changed = await editArguments(await this.fullArguments(entry));
        if (changed) await perform(control, approve({ arguments: changed }));
      }));
  }

  async deny(entry, control) {
    const given = await askForm(`Deny ${entry.tool}`, [
      field("Reason", element("input", { name: "reason", autocomplete: "off" }), "The model reads it."),
    ], "Deny", { danger: true });
    if (!given) return;
    await perform(control, async () => {
      await post(runPath(entry.run_id, "/deny"), { call_id: entry.call_id, reason: given.reason });
      this.done(entry, "Denied");
    });
  }

  async fullArguments(entry) {
    if (!entry.is_cut) return entry.arguments;
    const status = await request(runPath(entry.made_by));
    const found = status.pending_approvals.find((call) => call.digest === entry.digest);
    if (!found) throw new Error("The full arguments can't be read now. Try again, or approve the call with the command line.");
    return found.arguments;
  }

  async showFull(entry, control) {
    await perform(control, async () => {
      const shown = control.closest(".ask").querySelector(".effect");
      shown.replaceWith(effectOf(entry.tool, await this.fullArguments(entry), null));
      control.parentElement.remove();
    });
  }

  questionCard(entry) {
    const text = element("textarea", {
      name: "text", rows: "2", required: true, "aria-label": "Answer", onkeydown: submitOnEnter,
    });
    const send = element("button", { type: "submit", class: "primary" }, "Answer");
    const form = element("form", {
      class: "composer",
      onsubmit: (event) => {
        event.preventDefault();
        perform(send, async () => {
          await post(runPath(entry.run_id, "/messages"), { text: text.value });
          this.done(entry, "Answered");
        });
      },
    }, text, send);
    return this.cardOf(entry, "Question", element("p", { class: "question" }, entry.question),
      this.me.may.includes("send") ? form : element("p", { class: "hint" },
        `Your role, ${this.me.role}, may not answer questions.`));
  }

  /** Take a decided card away at once, and put the focus on the next one. */
  done(entry, what) {
    const key = keyOf(entry);
    this.decided.add(key);
    const card = [...this.element.children].find((child) => child.dataset.key === key);
    const hadFocus = card?.contains(document.activeElement) || document.activeElement === document.body;
    const next = card?.nextElementSibling ?? card?.previousElementSibling;
    card?.remove();
    if (hadFocus) (next ?? document.getElementById("main")).focus({ preventScroll: !next });
    announce(what);
    window.dispatchEvent(new Event("decided"));
    this.onDecided();
  }
}

export function submitOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

function keyOf(entry) {
  return JSON.stringify([entry.kind, entry.run_id, entry.call_id ?? entry.question ?? "", entry.digest ?? entry.turn ?? ""]);
}

function updateVotes(card, entry) {
  const votes = card.querySelector(".votes");
  if (!votes) return;
  votes.hidden = !(entry.approvals > 1);
  const by = entry.approved_by?.length ? `, and ${entry.approved_by.join(", ")} has approved` : "";
  fill(votes, `${entry.approvals} people must approve this call${by}.`);
}

async function editArguments(given) {
  const text = element("textarea", { name: "arguments", rows: "12", class: "code", spellcheck: "false" });
  text.value = JSON.stringify(given, null, 2);
  text.addEventListener("input", () => text.setCustomValidity(isObject(text.value) ? "" : "Write a JSON object."));
  const answer = await askForm("Change the arguments", [field("Arguments, as JSON", text)], "Approve with these arguments");
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

/** What a call would do: the difference that it makes to a file if it is known, or its arguments. */
export function effectOf(tool, given, change) {
  const shown = change ?? changeFrom(tool, given);
  if (shown === null) return element("div", { class: "effect" }, argumentsView(given));
  if (shown === "") return element("div", { class: "effect" }, argumentsView(given),
    element("p", { class: "hint" }, "The file would stay as it is."));
  return element("div", { class: "effect" }, diffView(shown, given.path), change === null || change === undefined
    ? element("p", { class: "hint" }, "The file itself can't be read here: these are the call's arguments.") : null);
}

function changeFrom(tool, given) {
  if (tool === "edit_file" && typeof given.old_string === "string" && typeof given.new_string === "string") {
    return [...marked("-", given.old_string), ...marked("+", given.new_string)].join("\n");
  }
  if (tool === "write_file" && typeof given.content === "string") return marked("+", given.content).join("\n");
  return null;
}

const marked = (mark, text) => text.replace(/\n$/, "").split("\n").map((line) => mark + line);

function diffView(diff, path) {
  const lines = diff.split("\n");
  const body = lines[0]?.startsWith("--- ") && lines[1]?.startsWith("+++ ") ? lines.slice(2) : lines;
  const added = body.filter((line) => line.startsWith("+")).length;
  const removed = body.filter((line) => line.startsWith("-")).length;
  const kinds = { "+": "added", "-": "removed", "@": "place" };
  return element("figure", { class: "diff" },
    element("figcaption", {}, element("span", { class: "path" }, path ?? ""),
      lines[0] === "--- /dev/null" ? badge("new file") : null,
      element("span", { class: "added" }, `+${added}`), element("span", { class: "removed" }, `−${removed}`)),
    element("div", { class: "code lines", tabindex: "0", role: "group", "aria-label": `Change of ${path ?? "a file"}` },
      body.map((line) => element("div", { class: kinds[line[0]] }, line || " "))));
}

/** A call's arguments, one below the other. */
export function argumentsView(given) {
  const entries = Object.entries(given ?? {});
  if (!entries.length) return element("p", { class: "hint" }, "No arguments");
  return element("dl", { class: "arguments" }, entries.flatMap(([name, value]) => [
    element("dt", {}, name),
    element("dd", { class: "code" }, typeof value === "string" ? value : JSON.stringify(value, null, 2)),
  ]));
}
