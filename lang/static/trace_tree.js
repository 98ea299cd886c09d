// The request tree: a row a node, branches indented below their fork.

const LONG_TEXT = 600; // characters from which on a text is shown folded
const HUES = [212, 28, 142, 280, 350, 180, 60, 245];

function drawTree() {
  const whole = document.createDocumentFragment();
  const places = new Map([[0, whole]]);
  for (const node of trace.nodes) {
    node.row = rowOf(node);
    node.bars = [];
    if (!places.has(node.branch)) places.set(node.branch, openBranch(node, places));
    places.get(node.branch).append(node.row);
  }
  tree.append(whole);
  const first = tree.querySelector(".node");
  if (first) first.tabIndex = 0;
  tree.addEventListener("click", onTreeClick);
}

/** A place for the nodes of a branch, below the fork that its first node continues. */
function openBranch(first, places) {
  const fork = nodeOf.get(first.parent);
  const around = places.get(fork.branch);
  const hue = HUES[first.branch % HUES.length];
  const opener = make("button", "opener", make("b", "", `branch ${first.branch}`), make("span", ""));
  opener.type = "button";
  opener.tabIndex = -1;
  opener.setAttribute("aria-expanded", "true");
  const branch = make("div", "branch", opener);
  branch.setAttribute("role", "group");
  branch.setAttribute("aria-label", `branch ${first.branch}`);
  branch.style.setProperty("--branch", `hsl(${hue} 60% 50%)`);
  branch.dataset.fork = fork.id;
  around.append(branch);
  return branch;
}

function rowOf(node) {
  const row = make("div", `node ${node.kind} ${node.status}`);
  row.dataset.id = node.id;
  row.tabIndex = -1;
  row.setAttribute("role", "treeitem");
  row.setAttribute("aria-selected", "false");
  row.setAttribute("aria-label", `${title(node)}, branch ${node.branch}`);
  const state = node.status === "done" ? "" : ` ${node.status}`;
  row.append(make("div", "head", `${node.kind} `, make("b", "", node.label), state));
  row.append(textOf(node), make("div", "meta", metaOf(node)));
  if (node.length > LONG_TEXT) {
    const more = make("button", "more");
    more.type = "button";
    more.tabIndex = -1;
    row.append(more);
    foldText(row, true);
  }
  if (node.error) row.append(make("div", "error", node.error));
  return row;
}

function textOf(node) {
  const text = make("div", "text");
  const answer = node.calls[0];
  if (answer?.tokens) text.append(...tokenSpans(answer.tokens));
  else if (node.scores) text.append(make("span", "seg chosen token", ...node.segments.map(([, chosen]) => chosen)));
  else if (!node.calls.length && !node.segments.some(([, each]) => each.trim())) text.append(...blank(node.segments));
  else text.append(...segmentSpans(node.segments));
  if (node.left) text.append(make("small", "", ` … ${node.left} more characters are left out`));
  return text;
}

function segmentSpans(segments) {
  return segments.map(([kind, text]) => make("span", `seg ${kind}`, text));
}

/** White space as signs, in rows that would else look empty. */
function blank(segments) {
  return segments.map(([kind, text]) => make("span", `seg ${kind}`, visible(text)));
}

/** Tokens of one kind stand in one span of that kind. */
function tokenSpans(tokens) {
  const spans = [];
  for (const told of tokens) {
    const [text, spelled, logprob, forced] = told;
    const kind = forced ? "forced" : "generated";
    const token = make("span", text ? "token" : "token end", text || spelled || "end");
    token.told = told;
    token.style.setProperty("--p", Math.exp(logprob).toFixed(3));
    const last = spans[spans.length - 1];
    if (!text) spans.push(token);
    else if (last?.classList.contains(kind)) last.append(token);
    else spans.push(make("span", `seg ${kind}`, token));
  }
  return spans;
}

function metaOf(node) {
  const parts = [];
  if (node.kind === "fork" || node.kind === "join") return "";
  if (node.calls.length) {
    const output = node.calls[0].output;
    if (node.kind === "gen" && output) parts.push(`${output} ${output === 1 ? "token" : "tokens"}`);
    if (node.calls[0].forced) parts.push(`${node.calls[0].forced} forced`);
    if (node.calls.length > 1) parts.push(`${node.calls.length} answers`);
    const call = callOf(node);
    if (call) parts.push(ms(call.end - call.start));
  } else {
    if (node.computed) parts.push(`${node.computed} computed`);
    if (node.reused) parts.push(`${node.reused} reused`);
  }
  return parts.join(" · ");
}

function onTreeClick(event) {
  const opener = event.target.closest(".opener");
  if (opener) return closeBranch(opener.parentElement, !opener.parentElement.classList.contains("closed"));
  const row = event.target.closest(".node");
  if (!row) return undefined;
  if (event.target.closest(".more")) return foldText(row, !isFolded(row));
  if (String(getSelection())) return undefined; // the reader marks text
  return choose(Number(row.dataset.id));
}

// -- folding ----------------------------------------------------------------------------------------------------------

function isFolded(row) {
  return row.querySelector(".text").classList.contains("folded");
}

function foldText(row, folded) {
  const more = row.querySelector(".more");
  if (!more) return;
  row.querySelector(".text").classList.toggle("folded", folded);
  const length = nodeOf.get(Number(row.dataset.id)).length;
  more.textContent = folded ? `Show all ${length} characters` : "Show less";
  more.setAttribute("aria-expanded", String(!folded));
}

function closeBranch(branch, closed) {
  branch.classList.toggle("closed", closed);
  const opener = branch.firstElementChild;
  opener.setAttribute("aria-expanded", String(!closed));
  const rows = [...branch.querySelectorAll(".node")];
  const answers = rows.filter((row) => row.matches(".gen, .select")).map(briefly);
  opener.lastElementChild.textContent = closed ? `${rows.length} nodes: ${answers.join(" · ")}` : "";
}

function briefly(row) {
  const text = row.querySelector(".text").textContent.trim().replace(/\s+/g, " ");
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

function foldAll(folded) {
  for (const branch of tree.querySelectorAll(".branch")) closeBranch(branch, folded);
  for (const row of tree.querySelectorAll(".node:has(> .more)")) foldText(row, folded);
}

/** Open whatever hides a row. */
function reveal(row) {
  for (let branch = row.closest(".branch.closed"); branch; branch = row.closest(".branch.closed")) closeBranch(branch, false);
}

/** What an arrow key does to a row: unfold what is below or in it; fold it, its branch, or go up to the fork. */
function turn(row, open) {
  const branches = [...tree.querySelectorAll(`.branch[data-fork="${row.dataset.id}"]`)];
  if (open) {
    foldText(row, false);
    for (const branch of branches) closeBranch(branch, false);
  } else if (row.querySelector(".more") && !isFolded(row)) {
    foldText(row, true);
  } else if (branches.some((branch) => !branch.classList.contains("closed"))) {
    for (const branch of branches) closeBranch(branch, true);
  } else {
    const branch = row.closest(".branch");
    if (branch) choose(Number(branch.dataset.fork));
  }
}
