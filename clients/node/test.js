'use strict';
// node test.js ENDPOINT: speaks to the server of tests/live/test_node_package.py and prints what happened, as JSON.
const { Client, EdgeServeError } = require('./index.js');

const failure = (promise) => promise.then(() => 'answered', (error) => (error instanceof EdgeServeError ? error.code : String(error)));

async function main(endpoint) {
  const client = new Client({ endpoint, client: 'node' });
  const said = {};
  said.ready = (await client.health()).ready;
  const x = { data: Float32Array.from([1, 2.5, -3, 4]), shape: [2, 2] };
  const answer = await client.infer('echo', { x, t: 'grüß dich' }, { sloMs: 5000, class: 'critical' });
  said.answer = { late: answer.late, shape: answer.outputs.x.shape, dtype: answer.outputs.x.dtype,
    data: Array.from(answer.outputs.x.data), text: answer.outputs.t,
    total: Math.abs(Object.values(answer.breakdownMs).reduce((a, b) => a + b, 0) - answer.totalMs) < 1e-6 };
  const texts = ['', 'a\0', 'grüß dich', '👩‍👧', 'x'.repeat(100000), '\0'];
  const words = await client.infer('echo', { w: { data: texts, shape: [2, 3] }, none: [], one: ['x'] });
  said.words = words.outputs.w.dtype === 'text' && String(words.outputs.w.shape) === '2,3'
    && words.outputs.w.data.every((text, index) => text === texts[index]) && words.outputs.w.data.length === 6
    && words.outputs.none.data.length === 0 && words.outputs.one.data[0] === 'x';
  said.wrongWords = await failure(client.infer('echo', { w: { data: ['a'], shape: [2] } }));
  const kinds = [Int8Array, Uint8Array, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array, Float64Array];
  const back = await Promise.all(kinds.map((Kind) => client.infer('echo', { x: Kind.from([0, 1, 2, 100]) })));
  said.kinds = back.every((one, index) => one.outputs.x.data.constructor === kinds[index] && one.outputs.x.data[3] === 100);
  const longs = await client.infer('echo', { x: BigInt64Array.from([-1n, 2n ** 62n]) });
  said.longs = longs.outputs.x.data[1] === 2n ** 62n && longs.outputs.x.dtype === 'int64';
  const large = new Float32Array(150528).map((_, index) => index % 251);
  const frame = await client.infer('echo', { x: { data: large, shape: [3, 224, 224] } });
  said.large = frame.outputs.x.data.every((value, index) => value === large[index]);
  const many = await Promise.all(Array.from({ length: 200 }, (_, index) => client.infer('echo', { x: Int32Array.from([index]) })));
  said.many = many.every((one, index) => one.outputs.x.data[0] === index);
  said.unknownApp = await failure(client.infer('ecko', {}));
  said.unknownOption = await failure(client.infer('echo', { x }, { slo: 1 }));
  said.wrongShape = await failure(client.infer('echo', { x: { data: x.data, shape: [3] } }));
  said.noTensor = await failure(client.infer('echo', { x: 3 }));
  said.expired = await failure(client.infer('echo', { x }, { sloMs: -1 }));
  const abort = new AbortController();
  const slow = client.infer('sleep', { x }, { signal: abort.signal });
  setTimeout(() => abort.abort(), 20);
  said.cancelled = await failure(slow);
  said.timedOut = await failure(client.infer('sleep', { x }, { timeoutMs: 20 }));
  const last = failure(client.infer('sleep', { x }));
  await new Promise((resolve) => { setTimeout(resolve, 20); });
  await client.close();
  said.closed = await last;
  said.afterwards = await failure(client.infer('echo', { x }));
  const nobody = new Client({ endpoint: 'ipc:///no/such/bus', timeoutMs: 100 });
  said.nobody = await failure(nobody.health());
  await nobody.close();
  console.log(JSON.stringify(said));
}

main(process.argv[2]).catch((error) => { console.error(error); process.exit(1); });
