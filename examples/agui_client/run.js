// Gives an agent of Loom a task over AG-UI, shows what it does, approves its calls, and answers its questions.
// node run.js http://localhost:8000/v1/agents/default/agui "Write a file"
import { HttpAgent, buildResumeArray } from '@ag-ui/client';
import { randomUUID } from 'node:crypto';

const [url, task] = process.argv.slice(2);
const headers = process.env.LOOM_TOKEN ? { Authorization: `Bearer ${process.env.LOOM_TOKEN}` } : {};
const agent = new HttpAgent({ url, headers, threadId: randomUUID() });
agent.subscribe({
  onTextMessageContentEvent: ({ event }) => void process.stderr.write(event.delta),
  onTextMessageEndEvent: () => void process.stderr.write('\n'),
  onToolCallEndEvent: ({ toolCallName, toolCallArgs }) =>
    console.error(`calls ${toolCallName}(${JSON.stringify(toolCallArgs)})`),
  onToolCallResultEvent: ({ event }) => console.error(`result: ${event.content}`),
});

function answer(interrupt) {
  console.error(`asks: ${interrupt.message}`);
  const payload = interrupt.reason === 'tool_call' ? { approved: true } : 'Blue';
  return [interrupt.id, { status: 'resolved', payload }];
}

agent.addMessage({ id: randomUUID(), role: 'user', content: task });
let ended = await agent.runAgent();
while (agent.pendingInterrupts.length > 0) {
  const answers = Object.fromEntries(agent.pendingInterrupts.map(answer));
  ended = await agent.runAgent({ resume: buildResumeArray(agent.pendingInterrupts, answers) });
}
console.log(JSON.stringify({ status: ended.result.status, output: ended.result.output, messages: agent.messages }));
