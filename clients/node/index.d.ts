export type Dtype = 'bool' | 'int8' | 'uint8' | 'int16' | 'uint16' | 'float16' | 'int32' | 'uint32' | 'float32' |
  'int64' | 'uint64' | 'float64';

export type TypedArray = Int8Array | Uint8Array | Uint8ClampedArray | Int16Array | Uint16Array | Int32Array |
  Uint32Array | BigInt64Array | BigUint64Array | Float32Array | Float64Array;

/** Elements in C order. `float16` travels as the bits in a Uint16Array, `bool` as 0 and 1 in a Uint8Array. */
export interface Tensor {
  data: TypedArray;
  shape: number[];
  dtype: Dtype;
}

/** Texts in C order. */
export interface Texts {
  data: string[];
  shape: number[];
  dtype: 'text';
}

/** What an input may be: a text, a typed array or a list of texts (one axis), or data with its shape. */
export type Input = string | TypedArray | string[] | { data: TypedArray; shape?: number[]; dtype?: Dtype } |
  { data: string[]; shape?: number[]; dtype?: 'text' };

export interface InferOptions {
  /** Deadline in milliseconds from now; the app's own when left out. */
  sloMs?: number;
  class?: 'critical' | 'normal' | 'background';
  /** What the answer is worth beside others of the app; 1 when left out. */
  value?: number;
  /** Name of the stream that this request continues. */
  stream?: string;
  /** Begin the stream anew: what it left behind is forgotten. */
  reset?: boolean;
  onLate?: 'drop' | 'answer' | 'partial';
  hints?: Record<string, number>;
  /** The least quality of an ensemble's answer that is of use, 0 to 1. */
  qualityMin?: number;
  /** Give up and cancel after so long; 0 waits for ever. The client's own when left out. */
  timeoutMs?: number;
  /** Cancels the request on the server. */
  signal?: AbortSignal;
}

export interface Answer {
  outputs: Record<string, Tensor | Texts | string | string[]>;
  /** The server's number of the request, for `story`. */
  id: number;
  late: boolean;
  /** Why the answer is partial; empty when it is not. */
  reason: string;
  totalMs: number;
  breakdownMs: { queue: number; load: number; batch: number; execute: number; other: number };
  quality: number | null;
  branches: string[];
  /** The model that answered, where the app's model has variants; else empty. */
  variant: string;
}

export class EdgeServeError extends Error {
  /** A code of the protocol, or `timed_out`, `server_gone`, `client_closed`. */
  code: string;
  reason?: string;
  requestId?: number;
  lane?: string;
  expectedMs?: number;
  waitMs?: number;
  leftMs?: number;
  sloMsMin?: number;
}

export interface ClientOptions {
  /** `ipc://PATH` or `tcp://HOST:PORT`; this user's own server when left out. */
  endpoint?: string;
  /** Public key of a server with CURVE keys, or its file. */
  serverKey?: string;
  /** File of this client's own keys (`NAME.key_secret`), for a server that lets in listed clients. */
  clientKey?: string;
  /** What this client calls itself, for shares among clients. */
  client?: string;
  /** 30000 when left out. */
  timeoutMs?: number;
}

export class Client {
  constructor(options?: ClientOptions);
  readonly endpoint: string;
  infer(app: string, inputs: Record<string, Input>, options?: InferOptions): Promise<Answer>;
  apps(): Promise<Record<string, unknown>>;
  models(): Promise<Record<string, unknown>>;
  stats(): Promise<Record<string, unknown>>;
  health(): Promise<{ ready: boolean; version: string; [key: string]: unknown }>;
  story(requestId: number): Promise<string[]>;
  close(): Promise<void>;
}

export function defaultEndpoint(): string;
