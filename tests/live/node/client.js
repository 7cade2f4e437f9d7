// A client of the EdgeServe bus, written from docs/reference/protocol.md with nothing but Node.js's standard library:
// ZMTP 3.0 with the NULL mechanism over a Unix or TCP socket, and as much msgpack as the protocol needs.
'use strict';
const net = require('net');

// --- msgpack ---------------------------------------------------------------------------------------------------------

function pack(value) {
  if (value === null || value === undefined) return Buffer.from([0xc0]);
  if (value === true || value === false) return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === 'bigint') {
    const out = Buffer.alloc(9);
    out[0] = 0xcf;
    out.writeBigUInt64BE(value, 1);
    return out;
  }
  if (typeof value === 'number') {
    if (Number.isInteger(value) && value >= 0 && value < 128) return Buffer.from([value]);
    if (Number.isInteger(value) && value >= 0 && Number.isSafeInteger(value)) return pack(BigInt(value));
    const out = Buffer.alloc(9);
    out[0] = 0xcb;
    out.writeDoubleBE(value, 1);
    return out;
  }
  if (typeof value === 'string') {
    const text = Buffer.from(value, 'utf8');
    const head = Buffer.alloc(5);
    head[0] = 0xdb;
    head.writeUInt32BE(text.length, 1);
    return Buffer.concat([head, text]);
  }
  const isList = Array.isArray(value);
  const items = isList ? value : Object.entries(value).filter((entry) => entry[1] !== undefined).flat();
  const count = isList ? items.length : items.length / 2;
  const head = Buffer.alloc(5);
  head[0] = isList ? 0xdd : 0xdf;
  head.writeUInt32BE(count, 1);
  return Buffer.concat([head, ...items.map(pack)]);
}

function unpack(bytes) {
  let at = 0;
  const take = (count) => bytes.subarray(at, (at += count));
  const uint = (size) => (size === 8 ? Number(take(8).readBigUInt64BE()) : take(size).readUIntBE(0, size));
  const int = (size) => (size === 8 ? Number(take(8).readBigInt64BE()) : take(size).readIntBE(0, size));
  const list = (count) => Array.from({ length: count }, () => read());
  const map = (count) => Object.fromEntries(Array.from({ length: count }, () => [read(), read()]));
  const text = (count) => take(count).toString('utf8');
  function read() {
    const type = uint(1);
    if (type < 0x80) return type;
    if (type < 0x90) return map(type & 15);
    if (type < 0xa0) return list(type & 15);
    if (type < 0xc0) return text(type & 31);
    if (type >= 0xe0) return type - 256;
    switch (type) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return take(uint(1 << (type - 0xc4)));
      case 0xca: return take(4).readFloatBE();
      case 0xcb: return take(8).readDoubleBE();
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return uint(1 << (type - 0xcc));
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return int(1 << (type - 0xd0));
      case 0xd9: case 0xda: case 0xdb: return text(uint(1 << (type - 0xd9)));
      case 0xdc: case 0xdd: return list(uint(2 << (type - 0xdc)));
      case 0xde: case 0xdf: return map(uint(2 << (type - 0xde)));
      default: throw new Error(`msgpack type ${type} is not expected here`);
    }
  }
  return read();
}

// --- ZMTP ------------------------------------------------------------------------------------------------------------

const GREETING = Buffer.concat([Buffer.from([0xff]), Buffer.alloc(8), Buffer.from([0x7f, 3, 0]),
  Buffer.from('NULL'), Buffer.alloc(16), Buffer.alloc(32)]);

function frame(body, flags) {
  const isLong = body.length > 255;
  const head = Buffer.alloc(isLong ? 9 : 2);
  head[0] = flags | (isLong ? 2 : 0);
  if (isLong) head.writeBigUInt64BE(BigInt(body.length), 1);
  else head[1] = body.length;
  return Buffer.concat([head, body]);
}

function ready() {
  const value = Buffer.from('DEALER');
  const length = Buffer.alloc(4);
  length.writeUInt32BE(value.length);
  return frame(Buffer.concat([Buffer.from('\x05READY'), Buffer.from('\x0bSocket-Type'), length, value]), 4);
}

class Zmtp {
  constructor(socket, onMessage, onReady) {
    this.socket = socket;
    this.onMessage = onMessage;
    this.onReady = onReady;
    this.rest = Buffer.alloc(0);
    this.parts = [];
    this.greeted = false;
    socket.write(GREETING);
    socket.on('data', (data) => this.read(data));
  }

  read(data) {
    this.rest = Buffer.concat([this.rest, data]);
    if (!this.greeted) {
      if (this.rest.length < 64) return;
      this.rest = this.rest.subarray(64);
      this.greeted = true;
      this.socket.write(ready());
    }
    for (;;) {
      if (this.rest.length < 2) return;
      const flags = this.rest[0];
      const head = flags & 2 ? 9 : 2;
      if (this.rest.length < head) return;
      const length = flags & 2 ? Number(this.rest.readBigUInt64BE(1)) : this.rest[1];
      if (this.rest.length < head + length) return;
      const body = this.rest.subarray(head, head + length);
      this.rest = this.rest.subarray(head + length);
      if (flags & 4) this.command(body);
      else {
        this.parts.push(body);
        if (!(flags & 1)) {
          const message = this.parts;
          this.parts = [];
          this.onMessage(message);
        }
      }
    }
  }

  command(body) {
    const name = body.toString('latin1', 1, 1 + body[0]);
    if (name === 'READY') this.onReady();
    else if (name === 'PING') this.socket.write(frame(Buffer.concat([Buffer.from('\x04PONG'), body.subarray(7)]), 4));
  }

  send(parts) {
    parts.forEach((part, index) => this.socket.write(frame(part, index < parts.length - 1 ? 1 : 0)));
  }
}

// --- EdgeServe -------------------------------------------------------------------------------------------------------

const ARRAYS = { float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array,
  uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  bool: Uint8Array };
const NAMES = new Map(Object.entries(ARRAYS).filter(([name]) => name !== 'bool').map(([name, kind]) => [kind, name]));

class Client {
  static connect(endpoint) {
    const place = endpoint.startsWith('ipc://') ? { path: endpoint.slice(6) }
      : { host: endpoint.slice(6).split(':')[0], port: Number(endpoint.split(':').pop()) };
    return new Promise((resolve, reject) => {
      const client = new Client();
      const socket = net.connect(place);
      socket.on('error', reject);
      socket.on('close', () => client.lost());
      client.wire = new Zmtp(socket, (message) => client.got(message), () => resolve(client));
    });
  }

  constructor() {
    this.waiting = new Map();
    this.id = 0;
    this.silenceMs = 10000;
  }

  say(fields, frames = []) {
    this.wire.send([Buffer.concat([Buffer.from([1]), pack(fields)]), ...frames]);
  }

  ask(fields, frames) {
    const id = (this.id += 1);
    const reply = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    this.say({ ...fields, id }, frames);
    this.beat();
    reply.id = id;
    return reply;
  }

  infer(app, inputs, options = {}) {
    const texts = {};
    const tensors = [];
    const frames = [];
    for (const [name, value] of Object.entries(inputs)) {
      if (typeof value === 'string') texts[name] = value;
      else {
        tensors.push([name, NAMES.get(value.data.constructor), value.shape]);
        frames.push(Buffer.from(value.data.buffer, value.data.byteOffset, value.data.byteLength));
      }
    }
    return this.ask({ kind: 'infer', app, tensors, texts, sent_ns: process.hrtime.bigint(), ...options }, frames);
  }

  cancel(id) { this.say({ kind: 'cancel', id }); }

  health() { return this.ask({ kind: 'health' }); }

  beat() {
    if (this.timer) return;
    this.timer = setInterval(() => {
      if (this.waiting.size) this.say({ kind: 'beat' });
      else { clearInterval(this.timer); this.timer = null; }
    }, this.silenceMs / 4);
  }

  got([header, ...frames]) {
    const fields = unpack(header.subarray(1));
    const waiting = this.waiting.get(fields.id);
    this.waiting.delete(fields.id);
    if (!waiting) return;
    if (fields.kind === 'error') waiting.reject(Object.assign(new Error(fields.message), fields));
    else if (fields.kind === 'info') waiting.resolve(fields.info);
    else {
      const outputs = { ...fields.texts };
      (fields.tensors || []).forEach(([name, dtype, shape], index) => {
        const bytes = Uint8Array.from(frames[index]); // a copy, so that it is aligned
        outputs[name] = { dtype, shape, data: new ARRAYS[dtype](bytes.buffer) };
      });
      waiting.resolve({ ...fields, outputs });
    }
  }

  lost() {
    for (const { reject } of this.waiting.values()) reject(Object.assign(new Error('gone'), { code: 'server_gone' }));
    this.waiting.clear();
  }

  close() {
    this.say({ kind: 'bye' });
    clearInterval(this.timer);
    this.wire.socket.end();
  }
}

module.exports = { Client, pack, unpack };
