// What a run has stored: long outputs, shared texts and files.

import { blobOf, request, runPath } from "./api.js";
import { ask } from "./dialogs.js";
import { Action, Meta } from "./elements.js";
import { html } from "./html.js";
import { complain } from "./state.js";
import { count } from "./text.js";
import { useSignal } from "./vendor/signals.js";

const LONGEST = 200_000;

export function Artifacts({ run }) {
  const found = useSignal(null);
  const list = async (event) => {
    if (!event.currentTarget.open) return;
    try {
      found.value = (await request(runPath(run.id, "/artifacts"))).artifacts;
    } catch (error) {
      complain(error);
    }
  };
  return html`<details onToggle=${list}><summary>Artifacts</summary>
    <ul class="artifacts">${found.value?.map(({ id, bytes, name }) => html`<li key=${id}>
      <${Action} class="quiet" act=${() => show(run, id, name)}>${id}<//><${Meta} facts=${[`${count(bytes)} bytes`, name]} /></li>`)}
      ${found.value?.length === 0 && html`<li class="hint">This run has no artifacts.</li>`}</ul></details>`;
}

async function show(run, id, name) {
  const content = await blobOf(runPath(run.id, `/artifacts/${encodeURIComponent(id)}`));
  const isText = content.type.startsWith("text/plain");
  const text = isText ? await content.text() : "This isn't a text file. Download it to view it.";
  const file = URL.createObjectURL(content);
  await ask(id, (close) => html`
    <div class="code" tabindex="0" role="group" aria-label="Content">${text.slice(0, LONGEST)}${
      text.length > LONGEST && "\n… download it to see the rest"}</div>
    <p class="actions"><button type="button" onClick=${() => close(null)}>Close</button>
      <a class="button" href=${file} download=${name || `${id.replaceAll("/", "_")}${isText ? ".txt" : ""}`}>Download</a></p>`);
  URL.revokeObjectURL(file);
}
