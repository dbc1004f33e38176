// A client program's side of the conversation with the tests, as in answering.py.
import readline from "node:readline";

export async function answer(checks) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let reply;
    try {
      reply = { facts: await checks[JSON.parse(line).check]() };
    } catch (error) {
      reply = { error: error.stack ?? String(error) };
    }
    process.stdout.write(JSON.stringify(reply) + "\n");
  }
}

export async function failure(call, facts) {
  try {
    await call();
  } catch (error) {
    return facts(error);
  }
  throw new Error("the call did not fail");
}
