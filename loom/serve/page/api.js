// Talks to the HTTP API: one function for requests, one that repeats them, and one for a run's events, which resumes after a
// lost connection.

import { askForm } from "./dialogs.js";
import { Field } from "./elements.js";
import { html } from "./html.js";
import { complain, isConnected } from "./state.js";
import { useEffect, useRef } from "./vendor/hooks.js";

const TOKEN = "loom-token";

/** An error that the service has answered: its `detail` says what was wrong and what to do. */
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || `The service answered with status ${status}.`);
    this.status = status;
    this.title = body?.title ?? "";
  }
}

/** The service doesn't answer. */
export class Unreachable extends Error {
  constructor() {
    super("The service doesn't answer.");
  }
}

export const runPath = (runId, rest = "") => `/v1/runs/${encodeURIComponent(runId)}${rest}`;

/** Send a request and return the JSON that the service answers. Throws Problem and Unreachable. */
export async function request(path, { method = "GET", body, signal } = {}) {
  const answer = await authorized(path, {
    method,
    signal,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const content = await contentOf(answer);
  if (!answer.ok) throw new Problem(answer.status, content);
  return content;
}

/** Read an answer. A connection that is lost, or a view that is left, while the answer arrives is no empty answer. */
async function contentOf(answer) {
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (answer.ok || error.name !== "SyntaxError") throw new Unreachable();
    return null; // the error of a proxy, which isn't JSON
  }
}

/** Read a content, such as an artifact. Throws Problem and Unreachable. */
export async function blobOf(path) {
  const answer = await authorized(path, {});
  if (!answer.ok) throw new Problem(answer.status, await contentOf(answer));
  return answer.blob().catch(() => { throw new Unreachable(); });
}

export const post = (path, body = {}) => request(path, { method: "POST", body });

/** Fetch with the token. If the service wants one, ask for it and try again. */
async function authorized(path, options) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = token ? { ...options.headers, Authorization: `Bearer ${token}` } : options.headers;
    let answer;
    try {
      answer = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Unreachable();
    }
    if (answer.status !== 401) return answer;
    const problem = await answer.json().catch(() => null);
    await tokenInsteadOf(token, problem?.detail);
  }
}

let asking = null;

/** Ask for a token, once for all requests that wait for one. */
async function tokenInsteadOf(refused, why) {
  if (sessionStorage.getItem(TOKEN) !== refused) return; // another request has asked meanwhile
  asking ??= askForm("Sign in", html`
    <${Field} label="Token" hint="From \`loom tokens add\` or your identity provider. The page keeps it until you close this tab.">
      <input name="token" type="password" autocomplete="off" required />
    <//>`, "Sign in", { note: refused ? why ?? "" : "This service needs a token." }).then((given) => {
    asking = null;
    if (given?.token.trim()) sessionStorage.setItem(TOKEN, given.token.trim());
  });
  await asking;
}

export function signOut() {
  sessionStorage.removeItem(TOKEN);
  location.reload();
}

export const isSignedIn = () => sessionStorage.getItem(TOKEN) !== null;

const SILENT_AFTER = 40_000; // The service sends a comment at least every 15 seconds.

/**
 * Call `onEvent` with each event of a run, once and in order, until the run ends or `signal` aborts. A lost connection is
 * resumed after the last event that was seen, and `onReconnected` is called.
 */
export async function follow(runId, { onEvent, onStatus, onReconnected, signal }) {
  let last = 0;
  for (let failures = 0; ; ) {
    try {
      const stream = new AbortController();
      const stop = () => stream.abort();
      signal.addEventListener("abort", stop, { once: true });
      try {
        const answer = await authorized(runPath(runId, "/events"), {
          headers: last ? { "Last-Event-ID": String(last) } : {},
          signal: stream.signal,
        });
        if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => null));
        isConnected.value = true;
        if (failures) onReconnected();
        failures = 0;
        for await (const message of messages(answer.body, stop)) {
          if (message.type === "end") return;
          if (message.type === "status") onStatus(message.data);
          else if (message.data.offset > last) {
            last = message.data.offset;
            onEvent(message.data);
          }
        }
      } finally {
        signal.removeEventListener("abort", stop);
        stop();
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status < 500) throw error;
    }
    if (signal.aborted) return;
    isConnected.value = false;
    failures += 1;
    await pause(Math.min(5000, 250 * 2 ** failures), signal);
  }
}

/** Parse server-sent events. `stop` ends a connection on which nothing has come for long. */
async function* messages(body, stop) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const silence = setTimeout(stop, SILENT_AFTER);
    const { done, value } = await reader.read().finally(() => clearTimeout(silence));
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop(); // An event that was cut off is dropped, and comes again after a reconnection.
    for (const part of parts) {
      const message = { type: "message", data: "" };
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) message.type = line.slice(7);
        else if (line.startsWith("data: ")) message.data += line.slice(6);
      }
      if (message.data) yield { ...message, data: JSON.parse(message.data) };
    }
  }
}

/** Wait for so long, or until `signal` aborts, or, if `untilSeen`, until the person comes back to the page. */
function pause(milliseconds, signal, { untilSeen = false } = {}) {
  return new Promise((resolve) => {
    const done = new AbortController();
    const end = () => { clearTimeout(timer); done.abort(); resolve(); };
    const timer = setTimeout(end, milliseconds);
    signal?.addEventListener("abort", end, { signal: done.signal });
    if (untilSeen) document.addEventListener("visibilitychange", end, { signal: done.signal });
  });
}

/** Call `read(signal)` now and every so often, while the page is in sight. Returns a function that reads again at once. */
export function usePolled(milliseconds, read, inputs = []) {
  const again = useRef(() => {});
  useEffect(() => {
    const leaving = new AbortController();
    const { signal } = leaving;
    again.current = () => reading(() => read(signal));
    (async () => {
      while (!signal.aborted) {
        if (!document.hidden) await again.current();
        await pause(milliseconds, signal, { untilSeen: true });
      }
    })();
    return () => leaving.abort();
  }, inputs);
  return () => again.current();
}

/** Read something that the person hasn't asked for: a lost connection is said once for all of them. */
async function reading(read) {
  try {
    await read();
    isConnected.value = true;
  } catch (error) {
    if (error instanceof Unreachable) isConnected.value = false;
    else if (error instanceof Problem) complain(error);
    else if (error.name !== "AbortError") throw error;
  }
}
