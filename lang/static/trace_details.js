// All that is known of a node, and what is said of a token or a call under the mouse.

const MOST_MATES = 40;

function showDetails(node) {
  const panel = document.getElementById("details");
  panel.replaceChildren();
  panel.hidden = !node;
  if (!node) return;
  const close = make("button", "close", "×");
  close.type = "button";
  close.setAttribute("aria-label", "Close the details");
  close.addEventListener("click", () => choose(null));
  const place = make("p", "place", `${node.line} · branch ${node.branch} · node ${node.id}`);
  if (node.code) place.append(make("br"), make("code", "", node.code));
  panel.append(close, make("h3", "", title(node)), place);
  if (node.error) panel.append(make("div", "error", node.error));
  panel.append(...[tokensPart(node), timesPart(node), matesPart(node), scoresPart(node), ...answersParts(node)].filter(Boolean));
  panel.append(...node.calls.filter((call) => call.tokens).map((call, place) => tokenTable(node, call, place)));
}

function listOf(pairs) {
  const list = make("dl", "");
  for (const [name, value] of pairs) {
    if (value !== undefined && value !== null && value !== "") list.append(make("dt", "", name), make("dd", "", String(value)));
  }
  return list.childElementCount ? list : null;
}

function part(name, ...children) {
  const kept = children.filter(Boolean);
  return kept.length ? make("div", "", make("h4", "", name), ...kept) : null;
}

function tokensPart(node) {
  if (node.kind === "fork" || node.kind === "join") return null;
  const answer = node.calls[0];
  const of_prompt = answer ? [["prompt", answer.prompt], ["of it reused", answer.reused], ["answer", answer.output], ["of it forced", answer.forced]] : [];
  const summed = [["computed for this node", node.computed], ["reused from the cache", node.reused]];
  return part("Tokens", listOf([...of_prompt, ...summed, ["ended by", answer?.ended]]));
}

function timesPart(node) {
  const call = callOf(node);
  if (!call) return null;
  const decode = call.first === undefined ? undefined : ms(Math.max(0, call.end - call.start - call.first));
  return part(
    "Time",
    listOf([
      ["could begin at", ms(call.start)],
      ["queue", ms(call.queue)],
      ["first token after", call.first === undefined ? undefined : ms(call.first)],
      ["decode", decode],
      ["in all", ms(call.end - call.start)],
      ["steps of the engine", call.steps && `${call.steps[0]} to ${call.steps[1]}`],
      ["requests in a step, mean", call.batch?.toFixed(1)],
    ]),
  );
}

function matesPart(node) {
  const mates = matesOf(node);
  if (!mates.length) return null;
  const links = make("div", "mates");
  for (const mate of mates.slice(0, MOST_MATES)) {
    const link = make("button", "", `${title(mate)} · branch ${mate.branch}`);
    link.type = "button";
    link.addEventListener("click", () => choose(mate.id));
    links.append(link);
  }
  if (mates.length > MOST_MATES) links.append(`and ${mates.length - MOST_MATES} more`);
  const how = callOf(node).steps ? "in the same steps" : "at the same time";
  return part(`Batch mates: ${mates.length} of this program ran ${how}`, links);
}

function scoresPart(node) {
  if (!node.scores) return null;
  const table = make("table", "", tableRow("th", "choice", "log-probability", "a token"));
  for (const [place, score] of node.scores.entries()) {
    const sum = score.logprobs.reduce((total, each) => total + each, 0);
    const row = tableRow("td", make("code", "", visible(score.text)), sum.toFixed(3), (sum / (score.logprobs.length || 1)).toFixed(3));
    if (place === node.choice) row.className = "won";
    table.append(row);
  }
  return part("Choices", table);
}

function answersParts(node) {
  if (node.calls.length < 2) return [];
  return node.calls.map((call, place) => {
    const text = make("div", "answer", ...(call.tokens ? tokenSpans(call.tokens) : segmentSpans(call.segments)));
    return part(`Answer ${place + 1}${call.ended ? `, ended by ${call.ended}` : ""}`, text);
  });
}

function tokenTable(node, call, place) {
  const table = make("table", "", tableRow("th", "token", "log-probability", "probability"));
  for (const [text, spelled, logprob, forced] of call.tokens) {
    const shown = make("code", forced ? "seg forced" : "", visible(text || spelled));
    table.append(tableRow("td", shown, logprob.toFixed(3), percent(logprob)));
  }
  const many = node.calls.length > 1 ? ` of answer ${place + 1}` : "";
  return make("details", "", make("summary", "", `${call.tokens.length} tokens${many} with log-probabilities`), table);
}

function tableRow(cell, ...values) {
  return make("tr", "", ...values.map((value) => make(cell, "", value)));
}

// -- under the mouse --------------------------------------------------------------------------------------------------

function tokenTip([text, spelled, logprob, forced, top]) {
  const parts = [make("b", "", visible(text || spelled) || "end"), ` ${percent(logprob)} `, make("span", "dim", `log-probability ${logprob.toFixed(3)}`)];
  if (forced) parts.push(make("div", "dim", "forced by the grammar"));
  if (!text) parts.push(make("div", "dim", "ended the answer"));
  if (top.length) parts.push(make("ol", "", ...top.map(([other, value]) => alternative(other, value, other === spelled))));
  return parts;
}

/** Every choice of a select, the likeliest by log-probability a token first. */
function choicesTip(node) {
  const scored = node.scores.map(({ text, logprobs }, place) => {
    const mean = logprobs.reduce((sum, each) => sum + each, 0) / (logprobs.length || 1);
    return [text, mean, place === node.choice];
  });
  scored.sort((a, b) => b[1] - a[1]);
  const rows = scored.slice(0, 12).map(([text, mean, won]) => alternative(text, mean, won));
  const left = scored.length - rows.length;
  return [
    make("span", "dim", "probability a token of each choice"),
    make("ol", "", ...rows),
    left ? make("div", "dim", `and ${left} more`) : "",
  ];
}

function alternative(text, logprob, taken) {
  const fill = make("i", "");
  fill.style.width = `${100 * Math.exp(logprob)}%`;
  return make("li", taken ? "taken" : "", make("code", "", visible(text)), make("div", "meter", fill), make("span", "", percent(logprob)));
}

function callTip(node, call) {
  const lines = [make("b", "", title(node)), make("span", "dim", ` branch ${node.branch}`)];
  const facts = [`${ms(call.end - call.start)} from ${ms(call.start)}`, `queue ${ms(call.queue)}`];
  if (call.first !== undefined) facts.push(`first token after ${ms(call.first)}`);
  if (call.steps) facts.push(`steps ${call.steps[0]} to ${call.steps[1]}`);
  if (call.batch !== undefined) facts.push(`${call.batch.toFixed(1)} requests in a step`);
  const text = node.segments.map(([, each]) => each).join("");
  if (text) facts.push(text.length > 160 ? `${text.slice(0, 160)}…` : text);
  return [...lines, ...facts.map((fact) => make("div", "dim", fact))];
}

function showTip(target, content) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = target.getClientRects()[0] ?? target.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const below = box.bottom + 6 + own.height < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
  tip.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - own.height - 6)}px`;
}

begin();
