// Speaks to the server at argv[2] and prints what happened, one JSON object.
'use strict';
const { Client } = require('./client.js');

async function main() {
  const client = await Client.connect(process.argv[2]);
  const said = {};
  said.health = await client.health();
  const vector = { data: Float32Array.from([1, 2.5, -3, 4]), shape: [2, 2] };
  const answer = await client.infer('echo', { x: vector, t: 'grüß dich' }, { slo_ms: 5000, class: 'critical' });
  said.answer = { outcome: answer.outcome, late: answer.late, breakdown: answer.breakdown_ns.length, shape: answer.outputs.x.shape,
    dtype: answer.outputs.x.dtype, data: Array.from(answer.outputs.x.data), text: answer.outputs.t };
  const large = new Float32Array(150528).map((_, index) => index % 251);
  const back = await client.infer('echo', { x: { data: large, shape: [3, 224, 224] } });
  said.large = back.outputs.x.data.every((value, index) => value === large[index]);
  const many = await Promise.all(Array.from({ length: 50 }, (_, index) => client.infer('echo',
    { x: { data: Int32Array.from([index]), shape: [1] } })));
  said.many = many.every((one, index) => one.outputs.x.data[0] === index);
  said.unknown = await client.infer('ecko', {}).catch((error) => error.code);
  said.expired = await client.infer('echo', { x: vector }, { slo_ms: -1 }).catch((error) => error.code);
  said.malformed = await client.infer('echo', { x: vector }, { slo: 1 }).catch((error) => error.message);
  const slow = client.infer('sleep', { x: vector });
  client.cancel(slow.id);
  said.cancelled = await slow.catch((error) => error.code);
  client.close();
  console.log(JSON.stringify(said));
}

main().catch((error) => { console.error(error); process.exit(1); });
