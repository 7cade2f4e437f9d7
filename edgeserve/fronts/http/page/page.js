// The page of a server: figures from one stream of server-sent events, drawn without any library.
import { openTry } from "./try.js";

export const byId = (id) => document.getElementById(id);
const MINUTE = 60;
const PARTS = ["queue", "load", "batch", "execute", "other"];
const PART_WORDS = { queue: "waiting for a lane", load: "loading the model", batch: "given to a busy lane", execute: "running", other: "beside the lane" };
const HUES = [205, 28, 150, 275, 55, 340, 175, 95];
const REQUESTS_KEPT = 400, REQUESTS_SHOWN = 14, WORKS_KEPT = 4000, APPS_SHOWN = 8;

const looks = [];
const known = { works: [], requests: new Map(), names: new Map(), rests: 0 };
let token = sessionStorage.getItem("token") || "";

// --- small things -----------------------------------------------------------------------------------------------------

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [name, does] of Object.entries(value)) made.addEventListener(name, does);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
export const ms = (value) => value === null || value === undefined ? "–" : value >= 600000 ? spanText(value / 1000) : value >= 10000 ? `${(value / 1000).toFixed(1)} s`
  : `${value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ms`;
const share = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(part === whole || !part ? 0 : 1)} %` : "–";
const count = (value) => value >= 1e9 ? `${(value / 1e9).toFixed(1)} G` : value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : value >= 1e4 ? `${(value / 1e3).toFixed(value >= 1e5 ? 0 : 1)} k` : String(value);
const bytes = (value) => value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${(value / 2 ** 20).toFixed(0)} MiB`;
const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const sum = (table) => Object.values(table).reduce((a, b) => a + b, 0);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = matchMedia("(prefers-color-scheme: dark)");
const isStill = matchMedia("(prefers-reduced-motion: reduce)");
const hues = new Map();
function hue(name) {
  if (!hues.has(name)) hues.set(name, HUES[hues.size % HUES.length]);
  return `hsl(${hues.get(name)} 62% ${isDark.matches ? 62 : 42}%)`;
}

// --- asking the front -------------------------------------------------------------------------------------------------

export async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}), ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    await askToken();
    return ask(path, options);
  }
  return answer;
}
function askToken() {
  const dialog = byId("token");
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      token = dialog.querySelector("input").value.trim();
      sessionStorage.setItem("token", token);
      done();
    }, { once: true });
    if (!dialog.open) dialog.showModal();
  });
}
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = (rest + value).split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      const fields = Object.fromEntries(piece.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      yield [fields.event || "message", fields.data];
    }
  }
}
let staleAt = null, lookAt = 0; // since when nothing has come, and when the last figures did (performance.now)
function state(kind, text) {
  byId("status").dataset.state = kind;
  set(byId("status"), text);
  if (kind !== "bad") staleAt = null;
  else if (staleAt === null) staleAt = performance.now();
  document.body.toggleAttribute("data-stale", staleAt !== null);
  if (staleAt !== null) showAge();
}
function showAge() {
  if (staleAt !== null && looks.length) set(byId("uptime"), `these figures are ${spanText((performance.now() - lookAt) / 1000)} old`);
}
setInterval(showAge, 1000);
function forget() {
  looks.length = known.works.length = 0;
  known.requests.clear();
  known.names.clear();
  chosen = -1;
}
let stream = null;
async function follow() {
  if (stream) return;
  const mine = stream = new AbortController();
  try {
    const response = await ask("page/stream", { signal: mine.signal });
    if (!response.ok) throw new Error((await response.json()).error);
    forget(); // the stream begins with all that its front knows
    for await (const [name, data] of events(response)) take(name, JSON.parse(data));
    throw new Error("the stream ended");
  } catch (error) {
    if (!mine.signal.aborted) state("bad", `no connection: ${error.message}`);
  }
  stream = null;
  if (!document.hidden) setTimeout(follow, 2000);
}
let leaving = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (document.hidden) leaving = setTimeout(() => stream && stream.abort(), 10000);
  else follow();
});

// --- what comes -------------------------------------------------------------------------------------------------------

function take(name, value) {
  if (name === "looks") {
    for (const look of value) {
      if (looks.length && look.uptime_s < looks[looks.length - 1].uptime_s) forget(); // the server has started again
      looks.push(look);
    }
    while (looks.length > 2 && looks[1].uptime_s <= looks[looks.length - 1].uptime_s - MINUTE) looks.shift();
    if (value.length) { lookAt = performance.now(); state("good", "serving"); showLooks(); }
  } else if (name === "failed") state("bad", value.error);
  else if (name === "no_steps") set(byId("timeline-note"), `No timeline: ${value.error}`);
  else if (name === "steps") { takeSteps(value); showRequests(); if (isStill.matches || known.rests) draw(); }
}
function takeSteps(table) {
  const held = known.works[chosen];
  if (known.rests) known.works.length = 0;
  for (const entry of table.entries) {
    if (entry.ph === "M") known.names.set(`${entry.pid} ${entry.name === "thread_name" ? entry.tid : "p"}`, entry.args.name);
    else if (entry.ph === "X") known.works.push({ lane: entry.tid, from: entry.ts, to: entry.ts + entry.dur, name: entry.name, ids: entry.args.requests || [] });
    else if (entry.ph === "b") known.requests.set(entry.id, { id: entry.id, app: entry.cat, from: entry.ts, to: entry.ts, ...entry.args });
    else if (entry.ph === "e" && known.requests.has(entry.id)) known.requests.get(entry.id).to = entry.ts;
  }
  known.works.splice(0, known.works.length - WORKS_KEPT);
  chosen = held ? known.works.indexOf(held) : -1;
  for (const id of known.requests.keys()) { if (known.requests.size <= REQUESTS_KEPT * 4) break; known.requests.delete(id); }
  known.rests = table.rests_s || 0;
  known.ahead = table.now_us - performance.now() * 1000;
  known.end = known.works.length ? Math.max(...known.works.map((work) => work.to)) : table.now_us;
}
const kindOf = (request) => request.outcome === "failed" ? "fail" : request.outcome !== "completed" ? "none" : request.slack_ms < 0 || request.cut ? "late" : "time";

// --- figures ----------------------------------------------------------------------------------------------------------

function counts(row) {
  const ended = sum(row.outcomes), { completed, failed } = row.outcomes;
  return { ended, late: row.late, time: completed - row.late, none: ended - completed - failed, fail: failed };
}
function between(before, now) {
  const difference = {};
  for (const key of Object.keys(now)) difference[key] = Math.max(0, now[key] - (before ? before[key] : 0));
  return difference;
}
const NOTHING = { ended: 0, late: 0, time: 0, none: 0, fail: 0 };
const total = (look) => Object.values(look.apps).map(counts).reduce((a, b) => Object.fromEntries(Object.keys(a).map((key) => [key, a[key] + b[key]])), NOTHING);
function latencies(was, row) { // of the answers between two looks: how many, their mean, and bounds of which so many of 100 are within
  const now = row.latency_histogram, before = was && was.latency_histogram;
  const counted = now.counts.map((value, at) => value - (before ? before.counts[at] : 0)), all = counted.reduce((a, b) => a + b, 0);
  const within = (part) => {
    let so = 0;
    const at = counted.findIndex((value) => (so += value) >= part * all);
    return at < now.bounds_ms.length ? `within ${ms(now.bounds_ms[at])}` : `in more than ${ms(now.bounds_ms[now.bounds_ms.length - 1])}`;
  };
  return all > 0 ? { all, mean: (now.sum_ms - (before ? before.sum_ms : 0)) / all, half: within(.5), most: within(.99) } : null;
}
function breakdown(was, row) { // means of the answers between two looks, from means since the start
  const n = row.outcomes.completed, m = was ? was.outcomes.completed : 0;
  return Object.fromEntries(Object.entries(row.breakdown_ms).map(([part, value]) => [part, n > m ? Math.max(0, (value * n - (m ? was.breakdown_ms[part] * m : 0)) / (n - m)) : 0]));
}

function showLooks() {
  const now = looks[looks.length - 1], first = looks[0], before = looks[looks.length - 2] || now;
  const span = now.uptime_s - first.uptime_s, all = between(total(first), total(now));
  set(byId("uptime"), `up ${spanText(now.uptime_s)}`);
  set(byId("h-minute"), span > MINUTE - 2 ? "The last minute" : `The last ${Math.round(span)} seconds`);
  set(byId("t-time"), share(all.time, all.ended));
  set(byId("t-rate"), span > 0 ? all.ended / span < 10 ? (all.ended / span).toFixed(1) : count(Math.round(all.ended / span)) : "–");
  set(byId("t-late"), count(all.late));
  set(byId("t-none"), count(all.none));
  set(byId("t-fail"), count(all.fail));
  set(byId("t-open"), count(now.open));
  showLanes(now, before);
  keyed(byId("apps"), Object.keys(now.apps), newApp, (card, name) => showApp(card, name, now, first));
  showDevice(now);
  byId("apps-none").hidden = Object.keys(now.apps).length > 0;
  keyed(byId("legend"), appsShown(), (name) => element("li", {}, element("i"), element("bdi", {}, name)), (item, name) => { item.firstChild.style.background = hue(name); });
}
function appsShown() { // in the timeline: those that are asked most, in the order of the configuration
  const now = looks[looks.length - 1], first = looks[0], names = Object.keys(now.apps);
  if (names.length <= APPS_SHOWN) return names;
  const asked = (name) => sum(now.apps[name].outcomes) - (first.apps[name] ? sum(first.apps[name].outcomes) : 0) + now.apps[name].open;
  const chosen = new Set([...names].sort((a, b) => asked(b) - asked(a)).slice(0, APPS_SHOWN));
  return names.filter((name) => chosen.has(name));
}
const spanText = (s) => s >= 3600 ? `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min` : s >= 60 ? `${Math.floor(s / 60)} min` : `${Math.floor(s)} s`;

function keyed(parent, keys, make, update) {
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  for (const [key, child] of there) if (!keys.includes(key)) child.remove();
  for (const key of keys) {
    let child = there.get(key);
    if (!child) { child = make(key); child.dataset.key = key; parent.append(child); }
    update(child, key);
  }
}
function showLanes(now, before) {
  const names = Object.keys(now.lanes).filter((name) => !name.startsWith("copy:") || now.lanes[name].works);
  keyed(byId("lanes").tBodies[0], names, () => {
    const row = element("tr", {}, element("th", { scope: "row", class: "name", dir: "auto" }), ...Array.from({ length: 6 }, (_, at) => element("td", { class: at > 1 ? "n" : "" })));
    row.cells[2].append(element("div", { class: "bar", title: "" }, element("i")), "");
    return row;
  }, (row, name) => {
    const lane = now.lanes[name], old = before.lanes[name] || lane, span = now.uptime_s - before.uptime_s;
    const busy = span > 0 ? Math.min(1, Math.max(0, (lane.busy * now.uptime_s - old.busy * before.uptime_s) / span)) : lane.busy;
    const works = lane.works - old.works, jobs = lane.jobs - old.jobs;
    set(row.cells[0], name);
    row.cells[0].title = name;
    set(row.cells[1], lane.state);
    row.cells[1].className = lane.state === "up" ? "" : "none-text";
    row.cells[2].firstChild.firstChild.style.width = `${busy * 100}%`;
    row.cells[2].firstChild.firstChild.style.background = "var(--time)";
    row.cells[2].lastChild.data = ` ${(busy * 100).toFixed(0)} %`;
    [span > 0 ? (works / span).toFixed(1) : "–", works && jobs ? (jobs / works).toFixed(1) : "–", count(lane.in_flight), count(lane.refused)].forEach((value, at) => set(row.cells[3 + at], value));
  });
}
function newApp(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${MINUTE} 24`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  return element("article", { class: "card" },
    element("div", { class: "row" }, element("h3", { dir: "auto", title: name }, name), element("button", { "aria-label": `Try it: ${name}`, on: { click: () => openTry(name) } }, "Try it")),
    element("p", { class: "about" }), element("div", { class: "row" }, element("span", { class: "big" }), element("p", { class: "rates" })),
    element("p", { class: "axis" }, element("span", { class: "top" }), element("span", {}, "requests a second")), svg,
    element("p", { class: "axis", "aria-hidden": true }, element("span", {}, `${MINUTE} s ago`), element("span", {}, "now")), element("ul", { class: "chips" }), element("div", { class: "parts" }), element("p", { class: "took" }));
}
function showApp(card, name, now, first) {
  const row = now.apps[name], was = first.apps[name], span = between(was && counts(was), counts(row));
  const [about, rates, took] = ["about", "rates", "took"].map((part) => card.querySelector(`p.${part}`));
  set(about, `${row.policy}${row.slo_ms ? `, deadline ${ms(row.slo_ms)}` : ""}${row.expected_ms ? `, takes ${ms(row.expected_ms)} alone` : ""}`);
  set(card.querySelector(".big"), share(span.time, span.ended));
  set(rates, `in time · ${count(span.late)} late · ${count(span.none)} refused · ${count(span.fail)} failed · ${count(row.open)} open`);
  set(card.querySelector(".top"), `up to ${count(spark(card.querySelector("svg"), name))}`);
  const reasons = {};
  for (const [outcome, table] of Object.entries(row.reasons))
    for (const [reason, count] of Object.entries(table)) {
      const more = count - ((was && was.reasons[outcome] && was.reasons[outcome][reason]) || 0);
      const key = `${outcome === "failed" ? "fail" : ""} ${reason}`;
      if (more > 0) reasons[key] = (reasons[key] || 0) + more;
    }
  keyed(card.querySelector(".chips"), Object.keys(reasons).sort((a, b) => reasons[b] - reasons[a]).slice(0, 5), (key) => element("li", { class: key.split(" ")[0] || null }),
    (chip, key) => set(chip, `${key.slice(key.indexOf(" ") + 1).replaceAll("_", " ")} ${count(reasons[key])}`));
  const answers = latencies(was, row);
  card.querySelector(".parts").replaceChildren(partsBar(breakdown(was, row)));
  set(took, answers ? `${ms(answers.mean)} on average, half ${answers.half}, 99 of 100 ${answers.most}` : "no answer in this time");
}
function spark(svg, name) {
  const bars = [], end = looks[looks.length - 1].uptime_s;
  for (let at = 1; at < looks.length; at++) {
    const now = looks[at].apps[name], was = looks[at - 1].apps[name], from = looks[at - 1].uptime_s, span = looks[at].uptime_s - from;
    if (now && was && span > 0) bars.push({ ...between(counts(was), counts(now)), from: Math.max(0, MINUTE - end + from), span });
  }
  const top = Math.max(1, ...bars.map((bar) => Math.ceil(bar.ended / bar.span)));
  const rectangles = [];
  bars.forEach((bar) => {
    let y = 24;
    for (const kind of ["time", "late", "none", "fail"]) {
      const height = 23 * bar[kind] / bar.span / top;
      if (!height) continue;
      y -= height;
      const rect = document.createElementNS(svg.namespaceURI, "rect");
      for (const [key, value] of Object.entries({ x: bar.from + .1 * bar.span, y, width: .8 * bar.span, height })) rect.setAttribute(key, value);
      rect.style.fill = `var(--${kind})`;
      rectangles.push(rect);
    }
  });
  svg.replaceChildren(...rectangles);
  svg.setAttribute("aria-label", `Requests per second of ${name} in the last minute, ${top} at most`);
  return top;
}
export function partsBar(parts) {
  const whole = PARTS.reduce((so, part) => so + (parts[part] || 0), 0);
  const said = PARTS.filter((part) => parts[part] > 0).map((part) => `${part} ${ms(parts[part])}`).join(", ");
  const bar = element("div", { class: "bar", role: "img", "aria-label": said || "no time", title: said });
  for (const part of PARTS) if (parts[part] > 0) {
    const piece = element("i");
    piece.style.width = `${100 * parts[part] / whole}%`;
    piece.style.background = `var(--${part})`;
    bar.append(piece);
  }
  return bar;
}
for (const part of PARTS) {
  const mark = element("i");
  mark.style.background = `var(--${part})`;
  byId("parts").append(element("li", {}, mark, PART_WORDS[part]));
}

// --- requests and their stories ---------------------------------------------------------------------------------------

const partsOf = (request) => {
  const parts = Object.fromEntries(["queue", "load", "batch", "execute"].map((part) => [part, request[`${part}_ms`] || 0]));
  return { ...parts, other: Math.max(0, (request.to - request.from) / 1000 - sum(parts)) };
};
function endOf(request, kind) {
  const text = kind === "time" ? "in time" : request.cut ? "ended early" : kind === "late" ? `${ms(-request.slack_ms)} late` : `${request.outcome}: ${String(request.reason || "").replaceAll("_", " ")}`;
  return element("span", { dir: "auto", title: text }, text);
}
function showRequests() {
  const which = document.querySelector("input[name=which]:checked").value;
  const chosen = [...known.requests.values()].reverse().filter((request) => which === "all" || kindOf(request) === which).slice(0, REQUESTS_SHOWN);
  const body = byId("requests").tBodies[0];
  if (body.contains(document.activeElement)) return; // not away from under a keyboard
  body.replaceChildren(...chosen.map((request) => {
    const kind = kindOf(request);
    return element("tr", {},
      element("td", {}, element("button", { "aria-label": `Story of request ${request.id}`, on: { click: () => openStory(request.id) } }, String(request.id))),
      element("td", { class: "name", dir: "auto", title: request.app }, request.app),
      element("td", { class: `end ${kind}-text` }, endOf(request, kind)),
      element("td", { class: "n" }, ms((request.to - request.from) / 1000)),
      element("td", { class: "wide-bar" }, partsBar(partsOf(request))));
  }));
}
document.querySelectorAll("input[name=which]").forEach((input) => input.addEventListener("change", showRequests));

export async function openStory(id, others = []) {
  const dialog = byId("story"), request = known.requests.get(id);
  set(byId("story-title"), `Request ${id}`);
  byId("story-bar").replaceChildren(...(request ? [partsBar(partsOf(request))] : []));
  byId("story-lines").replaceChildren(element("li", {}, "asking …"));
  if (!dialog.open) dialog.showModal();
  const answer = await ask(`page/story/${id}`), said = await answer.json();
  const lines = answer.ok ? said.story : [said.error];
  byId("story-lines").replaceChildren(...(lines.length ? lines : ["The server remembers open requests and the last that ended; not this one."]).map((line) => element("li", {}, line)));
  const rest = others.filter((other) => other !== id).slice(0, 15);
  if (rest.length) byId("story-lines").append(element("li", {}, "in the same batch: ", ...rest.map((other) => element("button", { on: { click: () => openStory(other, others) } }, String(other)))));
}

// --- the timeline -----------------------------------------------------------------------------------------------------

const canvas = byId("timeline"), SPAN_US = 5e6, DELAY_US = 9e5, ROW = 30, LABEL = 88;
let view = null, chosen = -1;
function window_() {
  if (chosen >= 0 && view) return view;
  if (known.rests || known.ahead === undefined) {
    const from = known.works.length ? Math.min(...known.works.map((work) => work.from)) : known.end || 0;
    return { from: Math.max(from, (known.end || 0) - SPAN_US), to: (known.end || 0) + 1 };
  }
  const to = (staleAt === null ? performance.now() : staleAt) * 1000 + known.ahead - DELAY_US;
  return { from: to - SPAN_US, to };
}
const lanesOf = () => [...known.names].filter(([key]) => key.startsWith("1 ") && !key.endsWith("p"))
  .map(([key, name]) => [Number(key.slice(2)), name]).sort((a, b) => a[1].localeCompare(b[1]));
function draw() {
  const look = looks[looks.length - 1];
  if (!look) return;
  const lanes = lanesOf();
  const apps = appsShown(), all = Object.keys(look.apps).length;
  const wide = canvas.clientWidth, high = (lanes.length + apps.length) * ROW + 20, scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(wide * scale) || canvas.height !== Math.round(high * scale)) {
    canvas.width = wide * scale; canvas.height = high * scale; canvas.style.height = `${high}px`;
  }
  const pen = canvas.getContext("2d"), label = wide < 520 ? 64 : LABEL;
  view = window_();
  const x = (us) => label + (wide - label) * (us - view.from) / (view.to - view.from);
  const ink = css("--ink"), soft = css("--soft"), line = css("--line"), hatch = css("--hatch"), marks = { late: css("--late"), none: css("--none"), fail: css("--fail") };
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, wide, high);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const rows = new Map();
  [...lanes.map(([tid, name]) => [`lane ${tid}`, name]), ...apps.map((name) => [`app ${name}`, name])].forEach(([key, name], at) => {
    const y = at * ROW;
    rows.set(key, y);
    pen.fillStyle = hatch; pen.fillRect(label, y + 2, wide - label, ROW - 4);
    pen.fillStyle = key.startsWith("lane") ? ink : soft;
    const letters = Array.from(name), fits = Math.floor(label / 7);
    pen.fillText(letters.length > fits ? `${letters.slice(0, fits - 1).join("")}…` : name, 0, y + (key.startsWith("lane") ? ROW / 2 : 10), label - 4);
  });
  pen.save(); pen.beginPath(); pen.rect(label, 0, wide - label, high); pen.clip();
  known.works.forEach((work, at) => {
    const y = rows.get(`lane ${work.lane}`);
    if (work.to < view.from || work.from > view.to || y === undefined) return;
    const request = known.requests.get(work.ids[0]), left = x(work.from), width = Math.max(1.5, x(work.to) - left - .5);
    pen.fillStyle = request ? hue(request.app) : soft;
    pen.fillRect(left, y + 3, width, ROW - 6);
    if (at === chosen) { pen.strokeStyle = ink; pen.lineWidth = 3; pen.strokeRect(left - 1, y + 2, width + 2, ROW - 4); }
    if (width > 46) { pen.fillStyle = isDark.matches ? "#10141b" : "#fff"; pen.fillText(work.name, left + 4, y + ROW / 2, width - 6); }
  });
  const most = apps.map((name) => drawOpen(pen, name, rows.get(`app ${name}`), x, marks));
  pen.restore();
  pen.fillStyle = soft;
  pen.font = "10px system-ui, sans-serif";
  apps.forEach((name, at) => pen.fillText(`up to ${count(most[at])} open`, 0, rows.get(`app ${name}`) + 22, label - 4));
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = soft; pen.strokeStyle = line;
  const step = niceStep((view.to - view.from) / 1000 / (wide < 520 ? 3 : 6));
  for (let at = 0; at * step * 1000 <= view.to - view.from; at++) {
    const where = x(view.to - at * step * 1000);
    pen.textAlign = at ? "center" : "right";
    if (where > label + 20) pen.fillText(at ? `−${step * at >= 1000 ? `${step * at / 1000} s` : `${step * at} ms`}` : known.rests ? "sample's end" : staleAt !== null ? "then" : "now", where, high - 8);
  }
  pen.textAlign = "left";
  set(byId("timeline-note"), known.rests ? `So much happens that a sample is shown, the next in ${Math.round(known.rests)} s: watching must not slow the server down.`
    : !known.works.length ? "Waiting for the first batch." : `${all > apps.length ? `The ${apps.length} apps of ${all} that are asked most are shown.` : "Everything is shown."} ▼ refused or given up, ✖ failed, ◆ late.`);
}
function niceStep(about) {
  const size = 10 ** Math.floor(Math.log10(about || 1));
  return [1, 2, 5, 10].map((times) => times * size).find((step) => step >= about);
}
function drawOpen(pen, app, y, x, marks) {
  const changes = [], mine = [...known.requests.values()].filter((request) => request.app === app && request.to >= view.from && request.from <= view.to);
  for (const request of mine) changes.push([request.from, 1], [request.to, -1]);
  changes.sort((a, b) => a[0] - b[0]);
  let open = 0, most = 1;
  for (const [, by] of changes) most = Math.max(most, open += by);
  pen.fillStyle = hue(app);
  pen.globalAlpha = .45;
  open = 0;
  changes.forEach(([at, by], index) => {
    open += by;
    const next = changes[index + 1] ? changes[index + 1][0] : at, height = (ROW - 8) * open / Math.max(most, 4);
    if (open > 0) pen.fillRect(x(at), y + ROW - 4 - height, Math.max(1, x(next) - x(at)), height);
  });
  pen.globalAlpha = 1;
  for (const request of mine) {
    const kind = kindOf(request);
    if (kind === "time") continue;
    pen.fillStyle = marks[kind];
    pen.fillText({ late: "◆", none: "▼", fail: "✖" }[kind], x(request.to) - 5, y + 9);
  }
  return Math.max(most, 4);
}
function choose(at) {
  chosen = at;
  const work = known.works[at];
  if (work && view && (work.from < view.from || work.to > view.to)) view = { from: work.from - SPAN_US / 2, to: work.from + SPAN_US / 2 };
  set(byId("timeline-said"), work ? `${work.name} on ${known.names.get(`1 ${work.lane}`)}, ${ms((work.to - work.from) / 1000)}, ${work.ids.length} requests` : "");
  draw();
}
canvas.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by && known.works.length) choose(Math.min(known.works.length - 1, Math.max(0, (chosen < 0 ? known.works.length : chosen) + by)));
  else if (event.key === "Escape") choose(-1);
  else if (event.key === "Enter" && chosen >= 0 && known.works[chosen].ids.length) openStory(known.works[chosen].ids[0], known.works[chosen].ids);
  else return;
  event.preventDefault();
});
canvas.addEventListener("blur", () => { if (!byId("story").open) choose(-1); });
canvas.addEventListener("click", (event) => {
  const box = canvas.getBoundingClientRect(), label = box.width < 520 ? 64 : LABEL;
  const at = view.from + (event.clientX - box.left - label) / (box.width - label) * (view.to - view.from), near = (view.to - view.from) / box.width * 4;
  const lane = (lanesOf()[Math.floor((event.clientY - box.top) / ROW)] || [])[0];
  const hit = known.works.filter((work) => work.lane === lane && work.from - near <= at && work.to + near >= at && work.ids.length).pop();
  if (hit) openStory(hit.ids[0], hit.ids);
});
let drawn = 0;
function tick(now) {
  if (!document.hidden && !isStill.matches && !known.rests && now - drawn > 45) { drawn = now; draw(); }
  requestAnimationFrame(tick);
}
requestAnimationFrame(tick);
addEventListener("resize", draw);
isDark.addEventListener("change", draw);

// --- the device -------------------------------------------------------------------------------------------------------

function showDevice(now) {
  const cards = {};
  for (const [name, row] of Object.entries(now.devices)) {
    const lines = [["models", row.models.join(", ") || "none"], ["memory of models", `${bytes(row.used_bytes)}${row.budget_bytes ? ` of ${bytes(row.budget_bytes)}` : ""}`, row.budget_bytes ? row.used_bytes / row.budget_bytes : null]];
    for (const limit of ["thermal", "power"]) if (row[limit] !== "none") lines.push([`${limit} limit`, row[limit]]);
    cards[`memory ${name}`] = lines;
  }
  for (const [name, row] of Object.entries(now.device.monitors || {})) {
    const r = row.readings || {}, clocks = Object.values(r.cpu_clocks_hz || {}), has = (value) => value !== null && value !== undefined;
    const ghz = (hz) => `${(hz / 1e9).toFixed(2)} GHz`;
    cards[name] = [
      has(r.gpu_load) && ["GPU load", share(r.gpu_load, 1), r.gpu_load],
      has(r.cpu_load) && ["processor load", share(r.cpu_load, 1), r.cpu_load],
      has(r.gpu_clock_hz) && ["GPU clock", ghz(r.gpu_clock_hz), r.gpu_clock_top_hz ? r.gpu_clock_hz / r.gpu_clock_top_hz : null],
      clocks.length && ["processor clock", ghz(Math.max(...clocks)), null],
      has(r.temperature_c) && ["heat", `${r.temperature_c.toFixed(0)} °C${r.temperature_hard_c ? ` of ${r.temperature_hard_c.toFixed(0)} °C` : ""}`, r.temperature_hard_c ? r.temperature_c / r.temperature_hard_c : null],
      has(r.power_w) && ["power", `${r.power_w.toFixed(1)} W${r.power_cap_w ? ` of ${r.power_cap_w.toFixed(0)} W` : ""}`, r.power_cap_w ? r.power_w / r.power_cap_w : null],
      has(r.memory_total_bytes) && ["memory", `${bytes(r.memory_total_bytes - r.memory_available_bytes)} of ${bytes(r.memory_total_bytes)}`, 1 - r.memory_available_bytes / r.memory_total_bytes],
      has(r.gpu_memory_total_bytes) && ["GPU memory", `${bytes(r.gpu_memory_used_bytes || 0)} of ${bytes(r.gpu_memory_total_bytes)}`, (r.gpu_memory_used_bytes || 0) / r.gpu_memory_total_bytes],
      (r.throttles || []).length > 0 && ["slowed by", r.throttles.join(", ")],
    ].filter(Boolean);
    if (!cards[name].length) cards[name] = [["readings", "nothing is known"]];
  }
  keyed(byId("device"), Object.keys(cards), (name) => element("article", { class: "card" }, element("h3", {}, name.startsWith("memory ") ? `memory of ${name.slice(7)}` : name), element("div")),
    (card, name) => keyed(card.lastChild, cards[name].map(([what]) => what), (what) => element("div", {}, element("p", { class: "row" }, element("span", {}, what), element("span")), element("div", { class: "bar" }, element("i"))),
      (row, what) => {
        const [, text, part] = cards[name].find(([key]) => key === what), bar = row.lastChild, has = part !== null && part !== undefined;
        set(row.firstChild.lastChild, text);
        bar.hidden = !has;
        bar.style.display = has ? "" : "none";
        if (has) { bar.firstChild.style.width = `${Math.min(100, part * 100)}%`; bar.firstChild.style.background = part > .9 ? "var(--none)" : "var(--time)"; }
      }));
}
follow();
