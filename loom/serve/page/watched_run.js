// A run that somebody watches: its log, its status and what waits for a person, all of them live.

import { Problem, follow, post, request, runPath, usePolled } from "./api.js";
import { announce } from "./state.js";
import { RunLog } from "./run_log.js";
import { useEffect, useState } from "./vendor/hooks.js";
import { batch, signal } from "./vendor/signals.js";

const ENDED = ["completed", "aborted", "limit_reached", "budget_exhausted", "failed"];
const REFRESH = 5000;
const SOON = 250;
const TEXT = ["node.thinking", "node.reasoning", "node.tool_progress"]; // events that don't change the status

class WatchedRun {
  constructor(runId) {
    this.id = runId;
    this.log = new RunLog(runId);
    this.status = signal(null);
    this.waiting = signal([]);
    this.streamError = signal(""); // why its events can't be read
    this.statusError = signal("");
  }

  get error() {
    return this.streamError.value || this.statusError.value;
  }

  get hasEnded() {
    return ENDED.includes(this.status.value?.status);
  }

  async watch(leaving) {
    try {
      await follow(this.id, {
        signal: leaving,
        onEvent: (event) => {
          this.log.apply(event);
          if (!TEXT.includes(event.action)) this.refreshSoon(leaving);
        },
        onStatus: () => this.refreshSoon(leaving),
        onReconnected: () => this.refreshSoon(leaving),
      });
      await this.refresh(leaving);
    } catch (error) {
      this.streamError.value = error.message;
    }
  }

  async refresh(leaving) {
    const before = this.status.value?.status;
    try {
      const [status, { waiting }] = await Promise.all([
        request(runPath(this.id), { signal: leaving }), request(runPath(this.id, "/approvals"), { signal: leaving }),
      ]);
      batch(() => {
        this.status.value = status;
        this.waiting.value = waiting;
        this.statusError.value = "";
      });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.statusError.value = error.message;
    }
    const { status } = this.status.value ?? {};
    if (before && before !== status) announce(`The run is ${status.replaceAll("_", " ")}`);
  }

  refreshSoon(leaving) {
    this.refreshing ??= setTimeout(() => {
      this.refreshing = null;
      if (!leaving?.aborted) this.refresh(leaving).catch(() => {}); // it is read again anyway
    }, SOON);
  }

  /** Ask the run to do something. */
  async send(path, body) {
    await post(runPath(this.id, path), body);
    this.refreshSoon();
  }
}

/** Return the run, which is watched as long as the view is there. */
export function useRun(runId) {
  const [run] = useState(() => new WatchedRun(runId));
  useEffect(() => {
    const leaving = new AbortController();
    run.watch(leaving.signal);
    return () => leaving.abort();
  }, []);
  usePolled(REFRESH, async (leaving) => {
    if (!run.hasEnded) await run.refresh(leaving);
  });
  return run;
}
