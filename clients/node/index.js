'use strict';
// A client of the EdgeServe bus: docs/reference/protocol.md over zeromq.js and msgpack.

const fs = require('fs');
const os = require('os');
const path = require('path');
const { encode, decode } = require('@msgpack/msgpack');
const zmq = require('zeromq');

const VERSION = 1;
const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, float16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, float32: Float32Array, int64: BigInt64Array, uint64: BigUint64Array,
  float64: Float64Array,
};
const NAMES = new Map(['int8', 'uint8', 'int16', 'uint16', 'int32', 'uint32', 'float32', 'int64', 'uint64', 'float64']
  .map((name) => [ARRAYS[name], name]).concat([[Uint8ClampedArray, 'uint8'], [Buffer, 'uint8']]));
const OPTIONS = {
  sloMs: 'slo_ms', class: 'class', value: 'value', stream: 'stream', reset: 'reset', onLate: 'on_late', hints: 'hints',
  qualityMin: 'quality_min', traceparent: 'traceparent',
};
const LINGER_MS = 200; // how long a goodbye may take
const SILENCE_MS = 10000; // of the server, while requests are in flight
const LAST_MS = 100; // behind a time-out, for what a language model has written by then

/** A request that had no answer. `code` is one of the codes of docs/reference/protocol.md, `client_closed`, `timed_out` or
 * `server_gone`. */
class EdgeServeError extends Error {
  constructor(message, code, fields = {}) {
    super(message);
    this.name = 'EdgeServeError';
    this.code = code;
    this.reason = fields.reason;
    this.requestId = fields.request_id;
    this.lane = fields.lane;
    this.expectedMs = fields.expected_ms;
    this.waitMs = fields.wait_ms;
    this.leftMs = fields.left_ms;
    this.sloMsMin = fields.slo_ms_min;
  }
}

/** Where this user's own server listens. */
function defaultEndpoint() {
  const runtime = process.env.XDG_RUNTIME_DIR;
  const folder = runtime ? path.join(runtime, 'edgeserve') : path.join(os.tmpdir(), `edgeserve-${os.userInfo().username}`);
  return `ipc://${path.join(folder, 'bus')}`;
}

/** Throws where another user has made the place of this user's own server. A missing directory is made, so that none can. */
function checkDefaultPlace(endpoint) {
  const place = endpoint.slice('ipc://'.length);
  const folder = path.dirname(place);
  fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
  for (const one of [folder, place]) {
    const status = fs.lstatSync(one, { throwIfNoEntry: false });
    if (!status) continue;
    const ours = [process.geteuid(), 0].includes(status.uid);
    if (ours && !(one === folder && status.mode & 0o022 && !status.isSymbolicLink())) continue;
    throw new EdgeServeError(`endpoint ${endpoint}: ${one} is another user's, or others may write to it, and could pose as the server; remove it, or give the endpoint of a server that you trust`, 'bad_input');
  }
}

function readKey(key) {
  if (!key) return undefined;
  const text = fs.existsSync(key) ? fs.readFileSync(key, 'utf8') : key;
  const found = text.match(/public-key\s*=\s*"([^"]{40})"/) || text.match(/^\s*(\S{40})\s*$/);
  if (!found) throw new EdgeServeError(`serverKey = ${JSON.stringify(key)}: expected a key of 40 characters or its file`, 'bad_input');
  return found[1];
}

/** A client's own keys: the file NAME.key_secret of `edgeserve init --keys NAME`. */
function readOwnKeys(file) {
  if (!file) return zmq.curveKeyPair();
  let text = '';
  try { text = fs.readFileSync(file, 'utf8'); } catch (error) {
    throw new EdgeServeError(`clientKey = ${JSON.stringify(file)} cannot be read: ${error.message}`, 'bad_input');
  }
  const publicKey = text.match(/public-key\s*=\s*"([^"]{40})"/);
  const secretKey = text.match(/secret-key\s*=\s*"([^"]{40})"/);
  if (!publicKey || !secretKey) throw new EdgeServeError(`clientKey = ${JSON.stringify(file)}: expected a file with a public and a secret key, as 'edgeserve init --keys NAME' writes NAME.key_secret`, 'bad_input');
  return { publicKey: publicKey[1], secretKey: secretKey[1] };
}

class Client {
  /** @param {{endpoint?: string, serverKey?: string, clientKey?: string, client?: string, timeoutMs?: number}} options */
  constructor(options = {}) {
    this.endpoint = options.endpoint || defaultEndpoint();
    if (this.endpoint === defaultEndpoint()) checkDefaultPlace(this.endpoint);
    this.timeoutMs = options.timeoutMs === undefined ? 30000 : options.timeoutMs;
    this._name = options.client;
    this._waiting = new Map();
    this._next = 0;
    this._closed = false;
    this._silenceMs = SILENCE_MS;
    this._heardMs = Date.now();
    this._outbox = [];
    this._sending = false;
    const settings = { linger: LINGER_MS, sendHighWaterMark: 10000, receiveHighWaterMark: 10000 };
    const serverKey = readKey(options.serverKey);
    if (serverKey) {
      const own = readOwnKeys(options.clientKey);
      Object.assign(settings, { curveServerKey: serverKey, curvePublicKey: own.publicKey, curveSecretKey: own.secretKey });
    } else if (options.clientKey) {
      throw new EdgeServeError("clientKey without serverKey: a client's own keys need the server's public key, too", 'bad_input');
    }
    this._socket = new zmq.Dealer(settings);
    this._socket.events.on('disconnect', () => this._lost('the connection to the server closed'));
    this._socket.connect(this.endpoint);
    this._reading = this._read();
  }

  /** Ask an app. Resolves with an answer, rejects with an EdgeServeError. `options.signal` cancels. */
  async infer(app, inputs, options = {}) {
    const texts = {};
    const tensors = [];
    const frames = [];
    for (const [name, value] of Object.entries(inputs)) {
      if (typeof value === 'string') { texts[name] = value; continue; }
      const [dtype, shape, bytes] = tensorOf(name, value);
      tensors.push([name, dtype, shape]);
      frames.push(bytes);
    }
    const fields = { kind: 'infer', app, sent_ns: process.hrtime.bigint() };
    if (tensors.length) fields.tensors = tensors;
    if (Object.keys(texts).length) fields.texts = texts;
    if (this._name) fields.client = this._name;
    for (const [option, value] of Object.entries(options)) {
      if (option === 'timeoutMs' || option === 'signal' || value === undefined) continue;
      const key = OPTIONS[option];
      if (!key) throw new EdgeServeError(`option ${option} is unknown; known: ${Object.keys(OPTIONS).concat('timeoutMs', 'signal').join(', ')}`, 'bad_input');
      fields[key] = value;
    }
    return this._ask(fields, frames, options);
  }

  apps() { return this._ask({ kind: 'apps' }); }

  models() { return this._ask({ kind: 'models' }); }

  stats() { return this._ask({ kind: 'stats' }); }

  health() { return this._ask({ kind: 'health' }); }

  /** What happened to a request, a line each. */
  async story(requestId) { return (await this._ask({ kind: 'story', request_id: requestId })).story; }

  /** Say goodbye. Requests in flight are rejected with code `client_closed`. */
  async close() {
    if (this._closed) return;
    this._closed = true;
    clearInterval(this._timer);
    this._fail('the client was closed', 'client_closed');
    this._send({ kind: 'bye' });
    const untilMs = Date.now() + LINGER_MS; // a connection that was never let in takes nothing
    while (this._sending && Date.now() < untilMs) await new Promise((resolve) => { setTimeout(resolve, 1); });
    this._socket.close();
    await this._reading;
  }

  // --- the wire ------------------------------------------------------------------------------------------------------

  _ask(fields, frames = [], options = {}) {
    if (this._closed) return Promise.reject(new EdgeServeError('the client is closed', 'client_closed'));
    const id = this._next += 1;
    return new Promise((resolve, reject) => {
      const waiting = { resolve, reject };
      const patience = options.timeoutMs === undefined ? this.timeoutMs : options.timeoutMs;
      if (patience) waiting.timer = setTimeout(() => this._endEarly(id, `no answer within ${patience} ms`), patience);
      if (options.signal) {
        if (options.signal.aborted) { clearTimeout(waiting.timer); reject(new EdgeServeError('cancelled before it was sent', 'cancelled')); return; }
        waiting.signal = options.signal;
        waiting.onAbort = () => this._giveUp(id, 'cancelled by the caller', 'cancelled');
        options.signal.addEventListener('abort', waiting.onAbort, { once: true });
      }
      if (this._waiting.size === 0) this._heardMs = Date.now();
      this._waiting.set(id, waiting);
      this._send({ ...fields, id }, frames);
      if (!this._timer) this._timer = setInterval(() => this._beat(), this._silenceMs / 4);
    });
  }

  _send(fields, frames = []) {
    const body = encode(fields, { useBigInt64: true, ignoreUndefined: true });
    const header = Buffer.allocUnsafe(1 + body.length);
    header[0] = VERSION;
    header.set(body, 1);
    this._outbox.push([header, ...frames]);
    if (!this._sending) this._flush();
  }

  async _flush() { // zeromq.js allows one send at a time
    this._sending = true;
    try {
      while (this._outbox.length) await this._socket.send(this._outbox.shift());
    } catch (error) {
      if (!this._socket.closed) this._lost(`sending failed: ${error.message}`);
    } finally {
      this._sending = false;
    }
  }

  async _read() {
    try {
      for await (const message of this._socket) this._got(message);
    } catch (error) {
      if (!this._closed) this._lost(`receiving failed: ${error.message}`);
    }
  }

  _got([header, ...frames]) {
    this._heardMs = Date.now();
    const fields = decode(header.subarray(1));
    if (fields.kind === 'beat') { this._silenceMs = fields.silence_ms || this._silenceMs; return; }
    const waiting = this._take(fields.id);
    if (!waiting) return;
    if (fields.code === 'cancelled' && waiting.timedOut) waiting.reject(new EdgeServeError(waiting.timedOut, 'timed_out', fields));
    else if (fields.kind === 'error') waiting.reject(new EdgeServeError(fields.message, fields.code, fields));
    else if (fields.kind === 'info') waiting.resolve(fields.info);
    else waiting.resolve(answerOf(fields, frames));
  }

  _take(id) {
    const waiting = this._waiting.get(id);
    if (!waiting) return undefined;
    this._waiting.delete(id);
    clearTimeout(waiting.timer);
    if (waiting.signal) waiting.signal.removeEventListener('abort', waiting.onAbort);
    return waiting;
  }

  /** Time is up: what a language model has written by now is the answer, where that is anything. */
  _endEarly(id, message) {
    const waiting = this._waiting.get(id);
    if (!waiting) return;
    waiting.timedOut = message;
    this._send({ kind: 'cancel', id, keeps: true });
    waiting.timer = setTimeout(() => this._giveUp(id, message, 'timed_out'), LAST_MS);
  }

  _giveUp(id, message, code) {
    const waiting = this._take(id);
    if (!waiting) return;
    this._send({ kind: 'cancel', id });
    waiting.reject(new EdgeServeError(message, code));
  }

  _beat() {
    if (this._waiting.size === 0) { clearInterval(this._timer); this._timer = undefined; return; }
    if (Date.now() - this._heardMs > SILENCE_MS) this._lost(`the server at ${this.endpoint} said nothing for ${SILENCE_MS / 1000} s`);
    else this._send({ kind: 'beat' });
  }

  _lost(message) { this._fail(message, 'server_gone'); }

  _fail(message, code) {
    for (const id of Array.from(this._waiting.keys())) this._take(id).reject(new EdgeServeError(message, code));
  }
}

function tensorOf(name, value) {
  const data = ArrayBuffer.isView(value) || Array.isArray(value) ? value : value && value.data;
  if (Array.isArray(data)) return textsOf(name, data, value.shape || [data.length]);
  if (!ArrayBuffer.isView(data)) throw new EdgeServeError(`input ${name}: expected a string, a typed array, a list of strings, or {data, shape[, dtype]}`, 'bad_input');
  const dtype = value.dtype || NAMES.get(data.constructor);
  const Kind = ARRAYS[dtype];
  if (!Kind) throw new EdgeServeError(`input ${name}: dtype ${dtype || data.constructor.name} is unknown; known: ${Object.keys(ARRAYS).join(', ')}`, 'bad_input');
  const shape = value.shape || [data.byteLength / Kind.BYTES_PER_ELEMENT];
  const bytes = shape.reduce((product, length) => product * length, Kind.BYTES_PER_ELEMENT);
  if (bytes !== data.byteLength) throw new EdgeServeError(`input ${name}: shape [${shape}] of ${dtype} needs ${bytes} bytes, the data has ${data.byteLength}`, 'bad_input');
  return [dtype, shape, Buffer.from(data.buffer, data.byteOffset, data.byteLength)];
}

// Each text has its length in four bytes before its UTF-8.
function textsOf(name, data, shape) {
  const count = shape.reduce((product, length) => product * length, 1);
  if (!data.every((text) => typeof text === 'string') || count !== data.length) {
    throw new EdgeServeError(`input ${name}: shape [${shape}] of texts needs ${count} strings, in one list`, 'bad_input');
  }
  return ['text', shape, Buffer.concat(data.flatMap((text) => {
    const bytes = Buffer.from(text), length = Buffer.alloc(4);
    length.writeUInt32LE(bytes.length);
    return [length, bytes];
  }))];
}

function textsIn(frame) {
  const found = [], bytes = Buffer.from(frame.buffer, frame.byteOffset, frame.byteLength);
  for (let at = 0; at < bytes.length;) {
    const end = at + 4 + bytes.readUInt32LE(at);
    found.push(bytes.toString('utf8', at + 4, end));
    at = end;
  }
  return found;
}

function answerOf(fields, frames) {
  const outputs = { ...fields.texts };
  (fields.tensors || []).forEach(([name, dtype, shape], index) => {
    const frame = frames[index];
    if (dtype === 'text') { outputs[name] = { dtype, shape, data: textsIn(frame) }; return; }
    const Kind = ARRAYS[dtype];
    const aligned = frame.byteOffset % Kind.BYTES_PER_ELEMENT === 0 ? frame : Uint8Array.from(frame);
    outputs[name] = { dtype, shape, data: new Kind(aligned.buffer, aligned.byteOffset, aligned.byteLength / Kind.BYTES_PER_ELEMENT) };
  });
  const [queue, load, batch, execute] = fields.breakdown_ns.map((ns) => ns / 1e6);
  const totalMs = fields.total_ns / 1e6;
  return {
    outputs, id: fields.request_id, late: fields.late, reason: fields.reason || '', totalMs,
    breakdownMs: { queue, load, batch, execute, other: Math.max(0, totalMs - queue - load - batch - execute) },
    quality: fields.quality === undefined ? null : fields.quality, branches: fields.branches || [],
    variant: fields.variant || '',
  };
}

module.exports = { Client, EdgeServeError, defaultEndpoint };
