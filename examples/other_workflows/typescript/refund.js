// Starts a worker with the other team's workflow, starts the workflow, waits for the agent's question, and approves it.
const { Client, Connection } = require('@temporalio/client');
const { NativeConnection, Runtime, DefaultLogger, Worker } = require('@temporalio/worker');
const { randomUUID } = require('node:crypto');

async function main() {
  Runtime.install({ logger: new DefaultLogger('WARN') });
  const address = process.env.TEMPORAL_ADDRESS ?? '127.0.0.1:7233';
  const client = new Client({ connection: await Connection.connect({ address }) });
  const taskQueue = `refunds-${randomUUID()}`;
  const worker = await Worker.create({
    connection: await NativeConnection.connect({ address }),
    taskQueue,
    workflowsPath: require.resolve('./workflows'),
  });
  const result = await worker.runUntil(async () => {
    const handle = await client.workflow.start('refundOrder', {
      workflowId: `refund-${randomUUID()}`,
      taskQueue,
      args: [7, process.env.LOOM_TASK_QUEUE ?? 'loom'],
    });
    const run = client.workflow.getHandle(await handle.query('agentRun'));
    const pending = await asked(run);
    console.error(`the agent asks for ${pending.tool}(${JSON.stringify(pending.arguments)})`);
    await handle.signal('decide', true);
    return await handle.result();
  });
  console.log(JSON.stringify(result));
  process.exit(0);
}

async function asked(run) {
  for (let attempt = 0; attempt < 300; attempt++) {
    try {
      const { pending_approvals: pending } = await run.query('status');
      if (pending.length > 0) return pending[0];
    } catch (error) {
      if (error.name !== 'WorkflowNotFoundError') throw error; // the workflow has not started it yet
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error('the agent asked for nothing within 30 seconds');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
