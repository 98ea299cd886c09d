// The page of a Palmette server: asks page/state once a second and draws it. Text that came from prompts reaches the
// document only as text nodes.
"use strict";

const PERIOD_MS = 1000, TIMEOUT_MS = 10000, WINDOW_S = 120, THEME = "palmette-theme";
const SVG = "http://www.w3.org/2000/svg";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (number) => (number < 10000 ? whole.format(number) : short.format(number));
const rate = (number) => (number > 0 && number < 10 ? number.toFixed(1) : count(number));
const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;
const set = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// -- asking --------------------------------------------------------------------------------------------------------

let last = null, drawnTree = "", samples = [];

async function ask() {
  const answer = await fetch("page/state", { headers: keyed(), cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => null);
  const message = said?.error?.message ?? `the server answered ${answer.status}`;
  throw Object.assign(new Error(message), { status: answer.status });
}

async function tick() {
  if (!document.hidden) {
    try {
      take(await ask());
      live("live", "live");
    } catch (error) {
      if (error.status === 401) { live("wait", "needs a key"); await askForKey(); tick(); return; }
      live("lost", error.status ? error.message : "no connection, trying again");
    }
  }
  setTimeout(tick, PERIOD_MS);
}

function live(kind, text) {
  $("state").dataset.kind = kind;
  set("state", text);
  $("main").classList.toggle("stale", kind !== "live");
}

// -- numbers -------------------------------------------------------------------------------------------------------

function take(state) {
  $("main").hidden = false;
  if (last !== null && state.stats.steps < last.stats.steps) { last = null; samples = []; }  // the server began anew
  if (last !== null && state.time_s > last.time_s) sample(last, state);
  document.querySelector("nav a[href=metrics]").hidden = sessionStorage.getItem(KEY) !== null;  // no browser sends it along
  set("model", state.model);
  tiles(state);
  pool(state);
  charts(state.time_s);
  tree(state);
  if (last === null || state.time_s > last.time_s) last = state;
}

function sample(before, after) {
  const seconds = after.time_s - before.time_s;
  const gained = (name) => after.stats[name] - before.stats[name];
  samples.push({
    time: after.time_s,
    output: gained("output_tokens") / seconds,
    computed: (gained("prompt_tokens") - gained("cached_tokens")) / seconds,
    reused: gained("cached_tokens") / seconds,
    running: after.stats.running,
    waiting: after.stats.waiting + after.stats.compiling,
    prompt: gained("prompt_tokens"), cached: gained("cached_tokens"),
    working: gained("working_s"), device: gained("device_s"),
  });
  samples = samples.filter((each) => after.time_s - each.time <= WINDOW_S);
}

function sum(name, seconds) {
  const from = samples.length ? samples[samples.length - 1].time - seconds : 0;
  return samples.reduce((total, each) => total + (each.time > from ? each[name] : 0), 0);
}

function tiles({ stats, hit_rate, context_length }) {
  const now = samples[samples.length - 1];
  set("running", count(stats.running));
  set("running-note", `context ${count(context_length)} tokens`);
  set("waiting", count(stats.waiting + stats.compiling));
  set("waiting-note", stats.compiling ? `${count(stats.compiling)} for a grammar` : "");
  set("output-rate", rate(now ? now.output : 0));
  set("output-note", `${count(stats.output_tokens)} in all, ${count(stats.forced_tokens)} forced`);
  const prompt = sum("prompt", 60);
  set("hit-rate", stats.prompt_tokens ? percent(hit_rate) : "–");
  set("hit-note", prompt ? `${percent(sum("cached", 60) / prompt)} in the last minute` : `of ${count(stats.prompt_tokens)} prompt tokens`);
  set("finished", count(stats.finished));
  set("finished-note", `${count(stats.failed)} failed, ${count(stats.aborted)} aborted`);
  const working = sum("working", 10);
  set("device", working > 0.001 ? percent(Math.min(1, sum("device", 10) / working)) : "–");
  set("device-note", working > 0.001 ? "of the time with work" : "idle");
}

function pool({ stats, pages_used }) {
  const total = Math.max(1, stats.total_pages);
  const parts = {
    own: Math.max(0, pages_used - stats.protected_pages), locked: stats.protected_pages,
    cached: stats.evictable_pages, free: stats.free_pages,
  };
  for (const [name, pages] of Object.entries(parts)) {
    $("pool").querySelector(`.${name}`).style.width = `${(100 * pages) / total}%`;
    $("pool-legend").querySelector(`.${name} b`).textContent = percent(pages / total);
  }
  const tokens = stats.total_pages * stats.page_size;
  set("pool-note", `${count(tokens)} tokens` + (stats.page_size > 1 ? ` in pages of ${stats.page_size}` : ""));
  $("pool").setAttribute("aria-label", `${percent((pages_used + stats.evictable_pages) / total)} of the KV pool is in use`);
}

// -- charts --------------------------------------------------------------------------------------------------------

const CHARTS = [
  { id: "output", parts: [["a", "output", "generated"]], format: rate },
  { id: "prompt", parts: [["a", "computed", "computed"], ["b", "reused", "reused"]], format: rate },
  { id: "requests", parts: [["a", "running", "running"], ["c", "waiting", "waiting"]], format: count },
];

function charts(now) {
  for (const chart of CHARTS) draw(chart, now);
}

function draw({ id, parts, format }, now) {
  const svg = $(`${id}-chart`), width = svg.clientWidth || 300, height = 110, left = 36, bottom = 16;
  const top = ceiling(Math.max(1, ...samples.map((each) => parts.reduce((total, [, name]) => total + each[name], 0))));
  const x = (time) => left + (width - left) * (1 - (now - time) / WINDOW_S);
  const y = (value) => 4 + (height - bottom - 4) * (1 - value / top);
  const drawn = [];
  for (const value of [0, top / 2, top]) {
    drawn.push(element("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }));
    drawn.push(element("text", { class: "axis", x: left - 6, y: y(value) + 3.5, "text-anchor": "end" }, short.format(value)));
  }
  drawn.push(element("text", { class: "axis", x: left, y: height - 2 }, "2 min ago"));
  drawn.push(element("text", { class: "axis", x: width, y: height - 2, "text-anchor": "end" }, "now"));
  let floor = samples.map(() => 0);
  for (const [kind, name] of parts) {
    const tops = samples.map((each, place) => floor[place] + Math.max(0, each[name]));
    if (samples.length > 1 && (kind === "a" || samples.some((each) => each[name] > 0))) {
      const along = samples.map((each, place) => `${x(each.time).toFixed(1)},${y(tops[place]).toFixed(1)}`);
      const back = samples.map((each, place) => `${x(each.time).toFixed(1)},${y(floor[place]).toFixed(1)}`).reverse();
      drawn.push(element("path", { class: `area-${kind}`, d: `M${along.join("L")}L${back.join("L")}Z` }));
      drawn.push(element("path", { class: `line-${kind}`, d: `M${along.join("L")}` }));
    }
    floor = tops;
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...drawn);
  const current = samples[samples.length - 1];
  set(`${id}-value`, current ? format(parts.reduce((total, [, name]) => total + current[name], 0)) : "");
  svg.onpointermove = (event) => {
    const time = now - WINDOW_S * (1 - (event.offsetX - left) / (width - left));
    const near = samples.reduce((best, each) => (best && Math.abs(best.time - time) < Math.abs(each.time - time) ? best : each), null);
    if (near === null) return;
    const lines = parts.map(([, name, label]) => `${label}: ${format(near[name])}`);
    showTip(event.clientX, event.clientY, null, [...lines, `${Math.round(now - near.time)} s ago`]);
  };
  svg.onpointerleave = hideTip;
}

function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].find((step) => step * power >= value) * power;
}

// -- the tree ------------------------------------------------------------------------------------------------------

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const visible = (text) => text.replace(/\n/g, "\u23ce").replace(HIDDEN, "\u00b7");
const cut = (text, most) => (text.length > most ? `${[...text].slice(0, most - 1).join("")}\u2026` : text);

function tree({ nodes, left_out, texts_shown }) {
  const seen = JSON.stringify([nodes, left_out, $("tree").clientWidth]);
  if (seen === drawnTree) return;
  drawnTree = seen;
  $("empty").hidden = nodes.length > 0;
  $("tree").hidden = nodes.length === 0;
  const tokens = nodes.reduce((total, node) => total + node.tokens, 0);
  set("tree-note", nodes.length === 0 ? "" : `${count(nodes.length)} ${nodes.length === 1 ? "node" : "nodes"}, ${count(tokens)} tokens`
    + (left_out ? `; ${count(left_out)} less used ones are not shown` : "")
    + (texts_shown ? "" : "; texts are hidden: anyone on the network could read them, set an API key"));
  $("tree").replaceChildren(...(nodes.length ? [picture(nodes)] : []));
  if (nodes.length === 0) set("example", example());
  hideTip();
}

function example() {
  const key = sessionStorage.getItem(KEY) === null ? "" : ' -H "Authorization: Bearer $PALMETTE_API_KEY"';
  return `curl ${location.origin}/v1/chat/completions${key} -H "content-type: application/json" \\\n`
    + `  -d '{"messages": [{"role": "user", "content": "Name a fruit tree."}], "max_tokens": 32}'`;
}

// A tidy tree from left to right: a row for each leaf, parents in the middle of their children. Children are in the
// order of their text, so that the picture stays as it is while the cache is used.
function picture(nodes) {
  const below = nodes.map(() => []), roots = [], places = nodes.map(() => ({ depth: 1, y: 0 }));
  nodes.forEach((node, index) => (node.parent < 0 ? roots : below[node.parent]).push(index));
  const byText = (a, b) => (nodes[a].text ?? "").localeCompare(nodes[b].text ?? "") || nodes[a].tokens - nodes[b].tokens || a - b;
  below.forEach((children) => children.sort(byText));
  const row = 24, stack = roots.sort(byText).slice().reverse(), order = [];
  let leaves = 0, deepest = 1;
  while (stack.length) {
    const index = stack.pop();
    order.push(index);
    places[index].depth = nodes[index].parent < 0 ? 1 : places[nodes[index].parent].depth + 1;
    deepest = Math.max(deepest, places[index].depth);
    if (below[index].length === 0) places[index].y = (0.5 + leaves++) * row;
    stack.push(...below[index].slice().reverse());
  }
  for (const index of order.slice().reverse()) {
    const children = below[index];
    if (children.length) places[index].y = (places[children[0]].y + places[children[children.length - 1]].y) / 2;
  }
  const room = $("tree").clientWidth, labels = Math.min(380, room * 0.4), margin = 24;
  const column = Math.max(36, Math.min(230, (room - labels - margin) / deepest));
  const width = Math.max(room, margin + column * deepest + labels), height = Math.max(60, leaves * row + 16);
  const at = (index) => [margin + column * places[index].depth, places[index].y + 8];
  const most = Math.max(...nodes.map((node) => node.tokens));
  const radius = (node) => 3.5 + 8.5 * Math.sqrt(node.tokens / most);
  const root = [margin, roots.reduce((total, index) => total + places[index].y, 0) / roots.length + 8];
  const links = element("g"), marks = element("g");
  for (const index of order) {
    const node = nodes[index], [x, y] = at(index), [px, py] = node.parent < 0 ? root : at(node.parent);
    const middle = (px + x) / 2;
    links.append(element("path", {
      class: node.locks ? "link locked" : "link", d: `M${px},${py}C${middle},${py} ${middle},${y} ${x},${y}`,
      "stroke-width": 1.5 + Math.min(4, node.locks * 0.5),
    }));
    marks.append(mark(node, x, y, radius(node), below[index].length > 0, column, labels));
  }
  marks.append(element("circle", { class: "trunk", cx: root[0], cy: root[1], r: 4 }));
  return element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "tree" }, links, marks);
}

function mark(node, x, y, r, inner, column, labels) {
  const group = element("g", { class: node.locks ? "node locked" : "node", tabindex: "-1", role: "treeitem" });
  group.append(element("circle", { class: "dot", cx: x, cy: y, r }), element("circle", { class: "hit", cx: x, cy: y, r: 11 }));
  const words = node.text === null ? "" : visible(node.text) + (node.whole ? "" : "\u2026");
  if (inner && column > 90) {
    const most = Math.floor((column - r - 14) / 6.6);
    group.append(element("text", { class: "halo faint", x: x - r - 5, y: y - 10, "text-anchor": "end" }, cut(words, most)));
  } else if (!inner) {
    const most = Math.floor((labels - r - 60) / 6.6);
    group.append(element("text", { class: "halo", x: x + r + 6, y }, words ? cut(words, most) : `${count(node.tokens)} tokens`));
  }
  const tip = (event) => showTip(event.clientX, event.clientY, node.text === null ? null : node.text + (node.whole ? "" : "\u2026"), [
    `${whole.format(node.tokens)} token${node.tokens === 1 ? "" : "s"}`,
    node.locks ? `in use by ${whole.format(node.locks)} request${node.locks === 1 ? "" : "s"}` : "evictable",
  ]);
  group.addEventListener("pointermove", tip);
  group.addEventListener("pointerleave", hideTip);
  return group;
}

// -- the tip, the theme --------------------------------------------------------------------------------------------

function showTip(x, y, text, lines) {
  const tip = $("tip"), line = (name, words) => Object.assign(document.createElement(name), { textContent: words });
  const parts = lines.map((words) => line("div", words));
  if (text !== null) parts.unshift(line("pre", text.split("\n").map((part) => part.replace(HIDDEN, "\u00b7")).join("\u23ce\n")));
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
}

function hideTip() {
  $("tip").hidden = true;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  const chosen = localStorage.getItem(THEME) ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = chosen;
  set("theme", chosen === "dark" ? "light" : "dark");
}

$("theme").addEventListener("click", () => {
  localStorage.setItem(THEME, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  theme();
});
dark.addEventListener("change", theme);
theme();
tick();
