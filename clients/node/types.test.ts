// Compiled by `npm run types`, never run: the declarations say what index.js does.
import { Answer, Client, EdgeServeError, Tensor } from './index';

export async function use(signal: AbortSignal): Promise<number> {
  const client = new Client({ endpoint: 'ipc:///tmp/bus', timeoutMs: 100, serverKey: 'server.key', clientKey: 'hall.key_secret' });
  const answer: Answer = await client.infer('detect', { image: { data: new Uint8Array(12), shape: [2, 2, 3] }, t: 'x' },
    { sloMs: 33, class: 'critical', onLate: 'partial', signal });
  const boxes = answer.outputs.boxes as Tensor;
  const lines: string[] = await client.story(answer.id);
  const error = new EdgeServeError();
  // @ts-expect-error an unknown class is refused
  await client.infer('detect', {}, { class: 'urgent' });
  return boxes.shape[0] + lines.length + (error.sloMsMin ?? 0) + answer.breakdownMs.other;
}
