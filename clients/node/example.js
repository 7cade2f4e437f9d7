'use strict';
// node example.js APP [ENDPOINT]: what the app takes, and one request of zeros with a deadline of 50 ms.
const { Client } = require('./index.js');

const SIZES = { float32: Float32Array, float64: Float64Array, uint8: Uint8Array, int32: Int32Array, int64: BigInt64Array };

async function main([app, endpoint]) {
  const client = new Client({ endpoint });
  try {
    const { inputs } = (await client.apps())[app];
    const zeros = {};
    for (const [name, { dtype, shape }] of Object.entries(inputs)) {
      const whole = shape.map((length) => (Number.isInteger(length) && length > 0 ? length : 1));
      zeros[name] = { data: new SIZES[dtype](whole.reduce((a, b) => a * b, 1)), shape: whole };
    }
    const answer = await client.infer(app, zeros, { sloMs: 50 });
    console.log(Object.keys(answer.outputs), `${answer.totalMs.toFixed(2)} ms`, answer.breakdownMs);
  } catch (error) {
    console.error(`${error.code}: ${error.message}`);
    process.exitCode = 1;
  } finally {
    await client.close();
  }
}

main(process.argv.slice(2));
