// Uses the client that openapi-ts has made: `node use.js URL`. A test compiles and runs it.

import assert from "node:assert/strict";

import { client } from "./ullage/client.gen";
import {
  commitSession, defineQueue, describeHandle, getFlowFileContent, getHandle, getQueue, planReclamation, pollQueue,
  putFlowFile, putHandle,
} from "./ullage";

const CONTENT = Uint8Array.from({ length: 256 }, (_, at) => at);

async function bytesOf(blob: Blob | File | undefined): Promise<number[]> {
  assert(blob !== undefined);
  return [...new Uint8Array(await blob.arrayBuffer())];
}

async function main(): Promise<void> {
  client.setConfig({ baseUrl: process.argv[2] });

  const put = { body: new Blob([CONTENT]), query: { attribute: ["colour=red"] }, headers: { "Idempotency-Key": "k2" } };
  const stored = (await putHandle({ ...put, throwOnError: true })).data;
  assert.equal(stored.size, CONTENT.length);
  const again = await putHandle({ ...put, throwOnError: true });
  assert.deepEqual([again.data.id, again.response.headers.get("Ullage-Repeated")], [stored.id, "true"]);
  const part = await getHandle({ path: { id: stored.id }, headers: { Range: "bytes=10-12" }, throwOnError: true });
  assert.deepEqual([part.response.status, await bytesOf(part.data)], [206, [10, 11, 12]]);
  const head = (await describeHandle({ path: { id: stored.id }, throwOnError: true })).data;
  assert.equal(head.attributes.colour, "red");
  const missing = (await getHandle({ path: { id: "0".repeat(32) } })).error;
  assert.equal(missing?.slug, "no-such-handle");

  await defineQueue({ path: { queue: "in" }, body: { count_max: 1 }, throwOnError: true });
  const made = (await putFlowFile({ path: { queue: "in" }, body: new Blob(["flow"]), throwOnError: true })).data;
  const full = await putFlowFile({ path: { queue: "in" }, body: new Blob(["more"]) });
  assert.deepEqual([full.error?.slug, full.response.headers.get("Retry-After")], ["back-pressure", "5"]);
  const held = (await pollQueue({ path: { queue: "in" }, body: { count: 10 }, throwOnError: true })).data;
  assert.deepEqual(held.flow_files.map((each) => each.id), [made.id]);
  const path = { session: held.session, id: made.id };
  const content = await getFlowFileContent({ path, throwOnError: true });
  assert.equal(String.fromCharCode(...await bytesOf(content.data)), "flow");
  await commitSession({ path: { session: held.session }, body: { rest_to: "out" }, throwOnError: true });
  const moved = (await getQueue({ path: { queue: "out" }, throwOnError: true })).data;
  assert.equal(moved.flow_files, 1);

  const plan = (await planReclamation({ throwOnError: true })).data;
  assert.equal(plan.step_count, plan.steps.length);
}

main().catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
