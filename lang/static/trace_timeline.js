// The timeline: a lane a branch, and more where it had several calls at once.

function drawTimeline() {
  const calls = trace.nodes.flatMap((node) => node.calls.filter((call) => call.end !== undefined).map((call) => [node, call]));
  const section = document.getElementById("timeline");
  section.hidden = calls.length === 0;
  if (!calls.length) return;
  const end = Math.max(...calls.map(([, call]) => call.end), 0.001);
  const names = make("div", "names");
  const plot = make("div", "plot", axis(end));
  for (const [name, lane] of lanes(calls)) {
    names.append(make("div", "", name));
    const row = make("div", "lane");
    for (const [node, call] of lane) {
      const bar = barOf(node, call, end);
      node.bars.push(bar);
      row.append(bar);
    }
    plot.append(row);
  }
  document.getElementById("chart").append(names, make("div", "scroll", plot));
  plot.addEventListener("click", (event) => {
    const bar = event.target.closest(".call");
    if (bar) choose(Number(bar.dataset.id));
  });
  const zoom = document.getElementById("zoom");
  zoom.addEventListener("input", () => (plot.style.width = `${100 * 2 ** Number(zoom.value)}%`));
}

/** Names and calls of the lanes, branch by branch. */
function lanes(calls) {
  const ofBranch = new Map();
  for (const pair of [...calls].sort((a, b) => a[1].start - b[1].start)) {
    const [node, call] = pair;
    if (!ofBranch.has(node.branch)) ofBranch.set(node.branch, []);
    const own = ofBranch.get(node.branch);
    const free = own.find((lane) => lane[lane.length - 1][1].end <= call.start);
    if (free) free.push(pair);
    else own.push([pair]);
  }
  const sorted = [...ofBranch].sort((a, b) => a[0] - b[0]);
  return sorted.flatMap(([branch, own]) => own.map((lane, place) => [place ? "" : `branch ${branch}`, lane]));
}

function barOf(node, call, end) {
  const bar = make("div", "call");
  bar.dataset.id = node.id;
  bar.told = call;
  const length = Math.max(call.end - call.start, 1e-6);
  bar.style.left = `${(100 * call.start) / end}%`;
  bar.style.width = `${(100 * length) / end}%`;
  const queue = Math.min(1, call.queue / length);
  const first = call.first === undefined ? 1 : Math.min(1, call.first / length);
  const phases = [["queue", queue], ["work", Math.max(0, first - queue)]];
  if (call.first === undefined && node.kind === "gen") phases[1][0] = "decode"; // nobody knows when its first token came
  for (const [kind, part] of phases) {
    const phase = make("i", `phase ${kind}`);
    phase.style.flex = `0 0 ${100 * part}%`;
    bar.append(phase);
  }
  bar.append(make("i", "phase decode"));
  return bar;
}

/** Scroll the chart, and it alone, to a bar. */
function showBar(bar) {
  const chart = document.getElementById("chart");
  const lane = bar.parentElement;
  if (lane.offsetTop < chart.scrollTop || lane.offsetTop + lane.offsetHeight > chart.scrollTop + chart.clientHeight) {
    chart.scrollTop = lane.offsetTop - chart.clientHeight / 2;
  }
  const wide = chart.querySelector(".scroll");
  if (bar.offsetLeft < wide.scrollLeft || bar.offsetLeft > wide.scrollLeft + wide.clientWidth) {
    wide.scrollLeft = bar.offsetLeft - wide.clientWidth / 2;
  }
}

function axis(end) {
  const steps = [-3, -2, -1, 0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
  const most = Math.max(2, Math.floor(document.getElementById("chart").clientWidth / 130));
  const size = steps.find((each) => end / each <= most) ?? end;
  const marks = make("div", "axis");
  for (let at = 0; at < end - 0.7 * size; at += size) marks.append(mark(at, end));
  marks.append(mark(end, end));
  return marks;
}

function mark(at, end) {
  const line = make("span", "", at === 0 ? "0" : ms(at));
  line.style.left = `${(100 * at) / end}%`;
  return line;
}
