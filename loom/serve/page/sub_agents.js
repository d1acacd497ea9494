// The tree of a run's sub-agents. The sub-agents of a sub-agent are read when they are opened, and then as long as they are.

import { request, runPath, usePolled } from "./api.js";
import { Badge, Meta, RunLink } from "./elements.js";
import { html } from "./html.js";
import { money } from "./text.js";
import { useSignal } from "./vendor/signals.js";

const REFRESH = 5000;

export function SubAgents({ runs }) {
  return html`<ul class="tree">${runs.map((child) => html`<li key=${child.run_id}>
    <p class="child"><${RunLink} id=${child.run_id} text=${child.run_id.slice(child.run_id.lastIndexOf("/") + 1)} />${" "}
      <${Badge} status=${child.status} />
      <${Meta} facts=${[`turn ${child.turn}`, child.cost !== null && money(child.cost)]} /></p>
    <p class="hint">${child.description}</p>
    ${child.sub_agents > 0 && html`<${Below} id=${child.run_id} />`}</li>`)}</ul>`;
}

function Below({ id }) {
  const isOpen = useSignal(false);
  return html`<details onToggle=${(event) => { isOpen.value = event.currentTarget.open; }}><summary>Its sub-agents</summary>
    ${isOpen.value && html`<${Read} id=${id} />`}</details>`;
}

function Read({ id }) {
  const found = useSignal([]);
  usePolled(REFRESH, async (signal) => { found.value = (await request(runPath(id), { signal })).children; });
  return html`<${SubAgents} runs=${found.value} />`;
}
