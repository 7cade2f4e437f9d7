// "Try it": a form for an app's inputs, as it declares them. Sent as a form, or as a conversation whose answer streams.
import { ask, byId, element, events, ms, openStory, partsBar } from "./page.js";

const RATE = 16000, SOUND_MIN = 400, SHOWN = 24;
let name = "";

export async function openTry(app) {
  name = app;
  byId("try-title").textContent = `Try ${app}`;
  byId("try-answer").replaceChildren();
  byId("try-form").replaceChildren(element("p", {}, "asking …"));
  byId("try").showModal();
  const answer = await ask("page/apps"), about = (await answer.json())[app];
  if (!about) return;
  const fields = about.chat ? [chatField()] : Object.entries(about.inputs).filter(([, input]) => !input.optional).map(([key, input]) => field(key, input));
  if (about.needs_stream) fields.push(streamField());
  const send = element("button", { class: "main" }, "Send");
  byId("try-form").replaceChildren(...fields, ...(fields.length ? [send] : [element("p", {}, "This app declares no inputs: declare them in its configuration to try it here.")]));
  byId("try-form").onsubmit = async (event) => {
    event.preventDefault();
    send.disabled = true;
    try {
      await (about.chat ? chat() : infer(about.inputs));
    } catch (error) {
      say(element("p", { class: "none-text" }, error.message));
    }
    send.disabled = false;
  };
  const first = byId("try-form").querySelector("textarea, input");
  if (first) first.focus();
}
const say = (...children) => byId("try-answer").replaceChildren(...children);
const streamField = () => element("label", {}, "stream", element("small", {}, " its state goes on from request to request"),
  element("input", { name: "sequence_id", value: "page", required: true, maxlength: 128 }));
const chatField = () => element("label", {}, "message", element("textarea", { name: "message", rows: 3, required: true }, "Say hello."));

const isImage = ({ dtype, shape }) => ["uint8", "float32", "float16", "float64"].includes(dtype) && shape.filter((size) => size !== 1).length >= 2
  && (shape[shape.length - 1] === 3 || shape[shape.length - 3] === 3 || (shape.length === 2 && dtype === "uint8"));
const isSound = ({ dtype, shape }) => ["float32", "int16"].includes(dtype) && shape.length === 1 && (shape[0] < 0 || shape[0] >= SOUND_MIN);
const isBytes = ({ dtype, shape }) => dtype === "uint8" && shape.length === 1 && shape[0] < 0;

function field(key, input) {
  const about = element("small", {}, ` ${input.dtype}${input.shape.length ? ` [${input.shape.map((size) => size < 0 ? "any" : size).join(", ")}]` : ""}`);
  const lengths = input.shape.map((size) => size < 0 ? 8 : size), many = lengths.reduce((a, b) => a * b, 1);
  let entry;
  if (input.dtype === "text" || input.dtype === "any") entry = element("textarea", { name: key, rows: 2, required: true }, "an example");
  else if (isImage(input)) entry = element("input", { type: "file", name: key, accept: "image/*,.npy", required: true });
  else if (isBytes(input)) entry = element("input", { type: "file", name: key, required: true });
  else if (isSound(input)) entry = element("input", { type: "file", name: key, accept: "audio/*", required: true });
  else entry = element("textarea", { name: key, rows: 3, spellcheck: "false", required: true }, many <= 4096 ? JSON.stringify(nested(lengths, input.dtype)) : "");
  return element("label", {}, key, about, entry);
}
function nested(lengths, dtype) {
  const [first, ...rest] = lengths;
  if (first === undefined) return dtype.startsWith("float") ? Math.round(Math.random() * 100) / 100 : 0;
  return Array.from({ length: first }, () => nested(rest, dtype));
}

async function infer(inputs) {
  const form = new FormData();
  for (const entry of byId("try-form").elements) {
    if (!entry.name) continue;
    const input = inputs[entry.name];
    if (entry.type !== "file") form.set(entry.name, entry.value);
    else if (isImage(input)) form.set(entry.name, entry.files[0]);
    else form.set(entry.name, JSON.stringify([...(isBytes(input) ? new Uint8Array(await entry.files[0].arrayBuffer()) : await sound(entry.files[0], input))]));
  }
  say(element("p", {}, "running …"));
  const response = await ask(`v2/models/${encodeURIComponent(name)}/infer`, { method: "POST", body: form }), answer = await response.json();
  if (!response.ok) return say(...refusal(answer));
  const about = answer.parameters || {}, parts = {};
  for (const part of ["queue", "load", "batch", "execute", "other"]) parts[part] = about[`${part}_ms`] || (about.breakdown_ms || {})[part] || 0;
  say(element("p", { class: about.late ? "late-text" : "time-text" }, `${about.late ? "late" : "in time"}, ${ms(about.total_ms)}${about.reason ? `; not whole: ${about.reason}` : ""}`),
    partsBar(parts), ...answer.outputs.map((output) => element("pre", { tabindex: 0 }, `${output.name}  ${shown(output)}`)), storyButton(about.request_id));
}
function shown(output) {
  const values = [output.data].flat(Infinity);
  if (output.datatype === "BYTES") return values.join("\n");
  const words = values.slice(0, SHOWN).map((value) => typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value);
  return `${output.datatype} [${output.shape.join(", ")}]\n${words.join("  ")}${values.length > SHOWN ? "  …" : ""}`;
}
const storyButton = (id) => id ? element("button", { type: "button", on: { click: () => openStory(id) } }, `Story of request ${id}`) : null;
function refusal(answer) {
  const better = Object.entries(answer).filter(([key, value]) => key.endsWith("_ms") && typeof value === "number").map(([key, value]) => `${key.replaceAll("_", " ").replace(" ms", "")}: ${ms(value)}`).join(", ");
  return [element("p", { class: "none-text" }, typeof answer.error === "string" ? answer.error : answer.error.message), better ? element("p", {}, better) : null, storyButton(answer.request_id)].filter(Boolean);
}
async function sound(file, input) {
  const context = new OfflineAudioContext(1, RATE, RATE), decoded = await context.decodeAudioData(await file.arrayBuffer());
  const samples = decoded.getChannelData(0), length = input.shape[0] < 0 ? samples.length : input.shape[0], values = new Array(length).fill(0);
  for (let at = 0; at < Math.min(length, samples.length); at++) values[at] = input.dtype === "int16" ? Math.round(samples[at] * 32767) : Number(samples[at].toFixed(5));
  return values;
}

async function chat() {
  const message = byId("try-form").elements.message.value, text = element("pre", { tabindex: 0 });
  say(text);
  const response = await ask("v1/chat/completions", { method: "POST", headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: name, stream: true, messages: [{ role: "user", content: message }] }) });
  if (!response.ok) return say(...refusal(await response.json()));
  for await (const [, data] of events(response)) {
    if (data === "[DONE]") break;
    const piece = JSON.parse(data);
    if (piece.error) return say(text, ...refusal(piece));
    text.append(piece.choices.map((choice) => (choice.delta && choice.delta.content) || "").join(""));
    const about = piece.edgeserve;
    if (about) say(text, element("p", { class: "late-text" }, about.reason ? `not whole: ${about.reason}` : "late"));
  }
}
