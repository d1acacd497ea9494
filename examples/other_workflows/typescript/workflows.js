// Another team's workflow. It knows Loom by three names only: the workflow type, the task queue and the signal.
const { condition, defineQuery, defineSignal, setHandler, startChild, workflowInfo } =
  require('@temporalio/workflow');

const decide = defineSignal('decide');
const agentRun = defineQuery('agentRun');

exports.refundOrder = async function refundOrder(order, loomQueue) {
  let approved;
  const runId = `${workflowInfo().workflowId}-agent`;
  setHandler(agentRun, () => runId);
  setHandler(decide, (yes) => {
    approved = yes;
  });
  const run = await startChild('AgentRun', {
    workflowId: runId,
    taskQueue: loomQueue,
    args: [{ task: `Pay order ${order} back`, agent: 'support', permissions: { refund: 'ask' } }],
  });
  await condition(() => approved !== undefined);
  await run.signal(approved ? 'approve' : 'deny', { by: 'the refund workflow' });
  const result = await run.result();
  return { status: result.status, output: result.output, toolCalls: result.tool_calls };
};
