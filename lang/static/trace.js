// A trace: what it holds, which node is chosen, and the keys. The other files draw its parts.
"use strict";

const trace = JSON.parse(document.getElementById("data").textContent);
const nodeOf = new Map(trace.nodes.map((node) => [node.id, node]));
const tree = document.getElementById("tree");
let chosen = null; // the id of a node

/** A new element with a class and text; children that are null are left out. */
function make(tag, classes, ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function title(node) {
  return node.label ? `${node.kind} ${node.label}` : node.kind;
}

/** A time in milliseconds, with as many digits as say something. */
function ms(value) {
  if (value >= 1000) return `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s`;
  return `${value.toFixed(value < 100 ? 1 : 0)} ms`;
}

function percent(logprob) {
  const part = 100 * Math.exp(logprob);
  return part < 0.1 ? "< 0.1 %" : `${part.toFixed(part < 10 || part > 99 ? 1 : 0)} %`;
}

/** A token's text so that spaces and line breaks can be seen. */
function visible(text) {
  return text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥");
}

/** The first call of a node that says when it ran. */
function callOf(node) {
  return node.calls.find((call) => call.end !== undefined);
}

/** Other nodes with a call in the same steps of the engine; where it has no steps, at the same time. */
function matesOf(node) {
  const call = callOf(node);
  if (!call) return [];
  const bySteps = call.steps !== undefined;
  const meets = (other) =>
    bySteps
      ? other.steps !== undefined && other.steps[0] <= call.steps[1] && other.steps[1] >= call.steps[0]
      : other.end !== undefined && other.start < call.end && other.end > call.start;
  return trace.nodes.filter((other) => other !== node && other.calls.some(meets));
}

function choose(id, focus = true) {
  const node = nodeOf.get(id);
  for (const marked of document.querySelectorAll(".mate, .chosen-call, .node[aria-selected='true']")) {
    marked.classList.remove("mate", "chosen-call");
    if (marked.classList.contains("node")) marked.setAttribute("aria-selected", "false");
  }
  chosen = node ? id : null;
  showDetails(node);
  if (!node) return;
  reveal(node.row);
  node.row.setAttribute("aria-selected", "true");
  for (const bar of node.bars) bar.classList.add("chosen-call");
  for (const mate of matesOf(node)) {
    mate.row.classList.add("mate");
    for (const bar of mate.bars) bar.classList.add("mate");
  }
  if (node.bars.length) showBar(node.bars[0]);
  if (focus) moveTo(node.row);
}

/** Make a node the one that the keyboard stands on. */
function moveTo(row) {
  for (const other of tree.querySelectorAll(".node[tabindex='0']")) other.tabIndex = -1;
  row.tabIndex = 0;
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

function shownRows() {
  return [...tree.querySelectorAll(".node")].filter((row) => row.offsetParent !== null);
}

function onKey(event) {
  const row = document.activeElement.closest(".node");
  if (event.key === "Escape") return choose(null);
  if (!row || event.altKey || event.ctrlKey || event.metaKey) return undefined;
  const rows = shownRows();
  const place = rows.indexOf(row);
  const targets = { ArrowDown: rows[place + 1], ArrowUp: rows[place - 1], Home: rows[0], End: rows[rows.length - 1] };
  if (event.key in targets) {
    if (targets[event.key]) choose(Number(targets[event.key].dataset.id));
  } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    turn(row, event.key === "ArrowRight");
  } else if (event.key === "Enter" || event.key === " ") {
    if (event.target !== row) return undefined; // a button inside
    choose(Number(row.dataset.id));
  } else {
    return undefined;
  }
  return event.preventDefault();
}

function onTip(event) {
  const token = event.target.closest(".token");
  const bar = event.target.closest(".call");
  if (token) showTip(token, token.told ? tokenTip(token.told) : choicesTip(nodeOf.get(Number(token.closest(".node").dataset.id))));
  else if (bar) showTip(bar, callTip(nodeOf.get(Number(bar.dataset.id)), bar.told));
  else document.getElementById("tip").hidden = true;
}

function begin() {
  document.getElementById("name").textContent = trace.name;
  document.getElementById("summary").textContent = trace.summary;
  const legend = document.getElementById("legend");
  for (const [kind, meaning] of Object.entries(trace.kinds)) {
    legend.append(make("li", "", make("span", `seg ${kind}`, kind), ` ${meaning}`));
  }
  drawTree();
  drawTimeline();
  const shade = document.getElementById("shade");
  document.getElementById("shading").hidden = !trace.nodes.some((node) => node.calls.some((call) => call.tokens));
  const template = document.getElementById("template");
  document.getElementById("markup").hidden = !tree.querySelector(".node.template");
  template.addEventListener("change", () => tree.classList.toggle("plain", !template.checked));
  shade.addEventListener("change", () => tree.classList.toggle("shaded", shade.checked));
  document.getElementById("fold").addEventListener("click", () => foldAll(true));
  document.getElementById("unfold").addEventListener("click", () => foldAll(false));
  document.addEventListener("keydown", onKey);
  document.addEventListener("mouseover", onTip);
  document.addEventListener("scroll", () => (document.getElementById("tip").hidden = true), true);
}
