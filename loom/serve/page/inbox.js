// The inbox: what waits for a person in all runs, oldest first.

import { Problem, Unreachable, every, request } from "./api.js";
import { Asks } from "./asks.js";
import { complain, element, fill } from "./dom.js";

const REFRESH = 3000;

export async function inboxView(main, { me, signal, showConnection, showWaiting }) {
  const nothing = element("p", { class: "hint" }, "Reading…");
  const asks = new Asks(me, { showRun: true, onDecided: () => refresh() });
  fill(main, element("div", { class: "view-head" }, element("h1", { tabindex: "-1" }, "Inbox")), asks.element, nothing);

  async function refresh() {
    try {
      const { waiting } = await request("/v1/approvals", { signal });
      showConnection(true);
      asks.update(waiting);
      const left = asks.element.childElementCount;
      showWaiting(left);
      nothing.hidden = left > 0;
      fill(nothing, "Nothing waits for a person.");
    } catch (error) {
      if (error instanceof Unreachable) showConnection(false);
      else if (error instanceof Problem) complain(error);
      else if (error.name !== "AbortError") throw error;
    }
  }
  await every(REFRESH, signal, refresh);
}
