'use strict';
// node keys.js PACKAGE ENDPOINT SERVER_KEY CLIENT_KEY: what a server with a list of keys says, with and without one.
const [, , home, endpoint, serverKey, clientKey] = process.argv;
const { Client } = require(home);

async function asked(options) {
  let client;
  try { client = new Client({ endpoint, timeoutMs: options.clientKey ? 20000 : 500, ...options }); } catch (error) { return error.code; }
  const said = await client.health().then((health) => health.ready, (error) => error.code);
  await client.close();
  return said;
}

async function main() {
  console.log(JSON.stringify([await asked({ serverKey, clientKey }), await asked({ serverKey }),
    await asked({ clientKey }), await asked({ serverKey, clientKey: '/no/such/file' }), await asked({ serverKey, clientKey: serverKey })]));
}

main().catch((error) => { console.error(error); process.exit(1); });
