"use strict";
// Draws one trace. Times are nanoseconds from the first interval. `data` has a column for each property of intervals,
// and lanes: what is drawn in one row, as places in the columns, ordered by begin, disjoint or within each other.

const data = JSON.parse(document.getElementById("data").textContent);
const { stages, models, lanes, about, report } = data;
const { stage, model, batch, slot, size, rows, begin, took } = data.intervals;
const end = begin.map((from, at) => from + took[at]);
const last = end.reduce((most, to) => Math.max(most, to), 1);
const [COPY_IN, COMPUTE, COPY_OUT] = ["copy-in", "compute", "copy-out"].map((name) => stages.indexOf(name));
const byBatch = new Map();
batch.forEach((number, at) => byBatch.has(number) ? byBatch.get(number).push(at) : byBatch.set(number, [at]));
const batches = [...byBatch.keys()].sort((a, b) => a - b);
for (const lane of lanes) {
  let reach = 0; // the latest end so far, so that what is in view is found by bisection
  lane.reach = lane.of.map((at) => (reach = Math.max(reach, end[at])));
}
const streams = lanes.filter((lane) => lane.group === "streams");

const byId = (id) => document.getElementById(id);
const [chart, overview, tip] = ["chart", "overview", "tip"].map(byId);
const view = { from: 0, to: last };
let selected = null, hovered = null, colours = {}, rem = 16, density = null;

// ---- words

function time(ns) {
  const [value, unit] = ns < 1e3 ? [ns, "ns"] : ns < 1e6 ? [ns / 1e3, "µs"] : ns < 1e9 ? [ns / 1e6, "ms"] : [ns / 1e9, "s"];
  return `${value.toFixed(unit === "ns" ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
}
const seconds = (s) => time(s * 1e9);
const percent = (part) => `${(100 * part).toFixed(1)} %`;
const counted = (n) => Math.round(n).toLocaleString("en-US");
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function table(head, lines, texts = 1) {
  const made = element("table"), cell = (name, text, at) => element(name, text, at < texts ? "text" : "");
  for (const [name, line] of [["th", head], ...lines.map((line) => ["td", line])]) {
    const row = element("tr");
    line.forEach((text, at) => row.append(text instanceof Node ? text : cell(name, text, at)));
    made.append(row);
  }
  return made;
}

/** The program that ran the batch of an interval: that of its size. A CPU has one for a row, and runs it for each. */
const program = (at) => about.programs[size[at]];
const planned = (of) => (of.batch === 1 ? "1 row" : `${of.batch} rows`);
const flops = (of) => of.layers.reduce((sum, layer) => sum + layer.flops, 0);

/** What is done in an interval: of several models, which one computes. */
const called = (at) => models[model[at]] || stages[stage[at]];

/** What is known of an interval beyond its times. */
function facts(at) {
  const known = [`slot ${slot[at]}, ${counted(rows[at])} rows`], s = took[at] / 1e9;
  const moved = program(at)?.row_bytes ?? [0, 0];
  const copied = stage[at] === COPY_IN ? moved[0] : stage[at] === COPY_OUT ? moved[1] : 0;
  if (copied) known.push(`${counted(rows[at] * copied)} bytes, ${(rows[at] * copied / s / 1e9).toFixed(2)} GB/s`);
  if (stage[at] === COMPUTE) {
    known.push(`${counted(rows[at] / s)} rows/s`);
    const all = program(at), own = (layer) => (layer.model ?? "") === models[model[at]];
    const ran = all && { ...all, layers: all.layers.filter(own) };
    const done = ran && Math.ceil(rows[at] / ran.batch) * flops(ran) / s;
    if (ran?.layers.length) known.push(`${ran.layers.length} layers for ${planned(ran)}, ${(done / 1e12).toPrecision(3)} TFLOP/s`);
  }
  return known;
}

// ---- drawing

function theme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "raised", "ink", "small", "line", "frame", "mixed", "veil", "mark", "on", "c0", "c1", "c2", "c3", "c4", "c5"])
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  rem = parseFloat(style.fontSize);
  // A tall window has taller rows.
  ROW = Math.min(3.4, Math.max(1.9, (innerHeight / rem - 26) / Math.max(1, lanes.length)));
  document.documentElement.style.setProperty("--row", `${ROW}rem`);
  density = null;
  draw();
}
const colour = (at) => colours[`c${slot[at] % 6}`];
/** How strong a stage is, in the rows that show several. */
const STRENGTH = { fill: .4, submit: 1, "copy-in": .65, compute: 1, "copy-out": .4, wait: .22, read: .4 };
const strength = (lane, at) => (lane.group === "streams" ? 1 : STRENGTH[stages[stage[at]]]);

/** A canvas as large as its place, in the pixels of the screen. */
function fit(canvas, height) {
  const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = `${height}px`;
  }
  const to = canvas.getContext("2d");
  to.setTransform(scale, 0, 0, scale, 0, 0);
  to.clearRect(0, 0, width, height);
  return [to, width];
}

let asked = 0;
function draw() {
  if (!asked) asked = requestAnimationFrame(() => { asked = 0; drawChart(); drawOverview(); });
}

const AXIS = 1.9, GROUP = 1.3; // as in the style sheet, in rem
let ROW = 1.9;
/** Where each lane is, from the top. */
function places() {
  let top = AXIS * rem, group = null;
  return lanes.map((lane) => {
    if (lane.group !== group) top += GROUP * rem;
    group = lane.group;
    top += ROW * rem;
    return top - ROW * rem;
  });
}

function drawChart() {
  const tops = places(), height = (tops.at(-1) ?? 0) + (ROW + .3) * rem;
  const [to, width] = fit(chart, height), scale = width / (view.to - view.from);
  const x = (ns) => (ns - view.from) * scale;
  drawAxis(to, width, height, x);
  to.textBaseline = "middle";
  to.font = `${.82 * rem}px system-ui, sans-serif`;
  lanes.forEach((lane, index) => drawLane(to, lane, tops[index] + .2 * rem, (ROW - .4) * rem, x, width, scale));
  to.strokeStyle = colours.mark;
  lanes.forEach((lane, index) => {
    for (const number of [hovered === null ? null : batch[hovered], selected]) {
      if (number === null || !byBatch.has(number)) continue;
      to.lineWidth = number === selected ? 2.5 : 1.5;
      for (const at of byBatch.get(number)) {
        if (!lane.has) lane.has = new Set(lane.of);
        if (lane.has.has(at) && end[at] >= view.from && begin[at] <= view.to)
          to.strokeRect(x(begin[at]) - 1, tops[index] + .2 * rem - 1, Math.max(took[at] * scale, 1) + 2, (ROW - .4) * rem + 2);
      }
    }
  });
  say();
}

function drawAxis(to, width, height, x) {
  const rough = (view.to - view.from) / Math.max(2, width / (5 * rem)), decade = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * decade).find((step) => step >= rough);
  const [unit, name] = step < 100 ? [1e3, "µs"] : step < 1e8 ? [1e6, "ms"] : [1e9, "s"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  to.font = `${.85 * rem}px system-ui, sans-serif`;
  to.textBaseline = "middle";
  to.lineWidth = 1;
  for (let mark = Math.ceil(view.from / step) * step; mark <= view.to; mark += step) {
    to.strokeStyle = colours.line;
    to.beginPath();
    to.moveTo(Math.round(x(mark)) + .5, AXIS * rem * .75);
    to.lineTo(Math.round(x(mark)) + .5, height);
    to.stroke();
    const text = `${(mark / unit).toFixed(digits)} ${name}`, half = to.measureText(text).width / 2;
    to.fillStyle = colours.small;
    if (x(mark) - half >= 0 && x(mark) + half <= width) to.fillText(text, x(mark) - half, AXIS * rem * .4);
  }
}

/** The first of a lane that ends after a moment. */
function first(lane, from) {
  let [low, high] = [0, lane.of.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.reach[middle] >= from) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Intervals with a width of their own are boxes; what is narrower adds up to how much of each pixel is taken. */
function drawLane(to, lane, top, height, x, width, scale) {
  const taken = new Float32Array(Math.ceil(width) + 1), alone = new Int32Array(taken.length).fill(-1);
  let narrow = 0;
  for (let place = first(lane, view.from); place < lane.of.length && begin[lane.of[place]] <= view.to; place++) {
    const at = lane.of[place], wide = took[at] * scale;
    if (wide < 1.5) {
      const left = Math.floor(x(begin[at]));
      if (left < 0 || left + 1 >= taken.length) continue;
      narrow++;
      alone[left] = taken[left] === 0 ? at : -1;
      const here = Math.min(Math.max(wide, .05), left + 1 - x(begin[at]));
      taken[left] += here;
      taken[left + 1] += Math.max(wide - here, 0);
      continue;
    }
    const left = Math.max(x(begin[at]), -2), right = Math.min(x(end[at]), width + 2);
    to.globalAlpha = strength(lane, at);
    to.fillStyle = colour(at);
    to.fillRect(left, top, right - left - (right - left > 3 ? .75 : 0), height);
    if (right - left > 2.2 * rem) {
      const alpha = to.globalAlpha, label = lane.group === "streams" ? `${batch[at]}` : called(at);
      to.globalAlpha = 1;
      to.fillStyle = alpha > .6 ? colours.on : colours.ink;
      for (const text of [lane.group === "streams" ? `batch ${label}` : `${label} ${batch[at]}`, label]) {
        const long = to.measureText(text).width;
        if (long > right - left - .5 * rem) continue;
        to.fillText(text, (Math.max(left, 0) + Math.min(right, width) - long) / 2, top + height / 2);
        break;
      }
    }
  }
  to.globalAlpha = 1;
  if (narrow) drawTaken(to, taken, top, height, narrow < width / 8 ? alone : undefined);
}

/** How much of each pixel is taken; where it is told which interval alone takes it, in its colour. */
function drawTaken(to, taken, top, height, alone) {
  taken.forEach((part, left) => {
    if (part === 0) return;
    const one = alone !== undefined && alone[left] >= 0;
    to.fillStyle = one ? colour(alone[left]) : colours.mixed;
    to.globalAlpha = Math.max(one ? .5 : .12, Math.min(part, 1));
    to.fillRect(left, top, 1, height);
  });
  to.globalAlpha = 1;
}

/** The whole run: how much of each pixel the streams take, and the part in view. */
function drawOverview() {
  const height = 3 * rem, [to, width] = fit(overview, height), scale = width / last;
  density ??= { width: 0, of: [] };
  if (density.width !== width) {
    density = { width, of: streams.map((lane) => {
      const taken = new Float32Array(Math.ceil(width) + 1);
      for (const at of lane.of)
        for (let left = Math.floor(begin[at] * scale), to = end[at] * scale; left < to; left++)
          taken[left] += Math.min(to, left + 1) - Math.max(begin[at] * scale, left);
      return taken;
    }) };
  }
  const high = height / Math.max(1, streams.length);
  density.of.forEach((taken, index) => drawTaken(to, taken, index * high + 2, high - 4));
  const [left, wide] = [view.from * scale, Math.max(3, (view.to - view.from) * scale)];
  to.fillStyle = colours.veil;
  to.fillRect(left, 0, wide, height);
  to.strokeStyle = colours.c0;
  to.lineWidth = 2;
  to.strokeRect(left + 1, 1, wide - 2, height - 2);
}

// ---- figures of what is in view

/** The parts of the view that some stages cover, disjoint and in order. */
function covered(...wanted) {
  const spans = [];
  for (const lane of streams)
    for (let place = first(lane, view.from); place < lane.of.length && begin[lane.of[place]] <= view.to; place++) {
      const at = lane.of[place];
      if (wanted.includes(stage[at])) spans.push([Math.max(begin[at], view.from), Math.min(end[at], view.to)]);
    }
  spans.sort((a, b) => a[0] - b[0]);
  const merged = [];
  for (const [from, to] of spans)
    if (merged.length && from <= merged.at(-1)[1]) merged.at(-1)[1] = Math.max(merged.at(-1)[1], to);
    else merged.push([from, to]);
  return merged;
}
const total = (spans) => spans.reduce((sum, [from, to]) => sum + to - from, 0);
function common(a, b) {
  let sum = 0;
  for (let i = 0, j = 0; i < a.length && j < b.length; a[i][1] < b[j][1] ? i++ : j++)
    sum += Math.max(0, Math.min(a[i][1], b[j][1]) - Math.max(a[i][0], b[j][0]));
  return sum;
}

let saying = 0;
function say() {
  clearTimeout(saying);
  saying = setTimeout(() => {
    const [copies, compute] = [covered(COPY_IN, COPY_OUT), covered(COMPUTE)], all = view.to - view.from;
    const under = total(copies) > 0 ? `${percent(common(copies, compute) / total(copies))} of copying under compute, ` : "";
    byId("view").textContent = `In view: ${time(all)}, ${under}compute ${percent(total(compute) / all)} busy`;
  }, 60);
}

// ---- moving

function show(from, to) {
  const span = Math.min(Math.max(to - from, 500), last * 1.04), slack = last * .02;
  view.from = Math.min(Math.max(from, -slack), last + slack - span);
  view.to = view.from + span;
  draw();
}
function zoom(factor, around = (view.from + view.to) / 2) {
  show(around - (around - view.from) * factor, around + (view.to - around) * factor);
}
const move = (part) => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
/** Some batches from the middle of the run. */
function some(count) {
  const from = Math.max(0, Math.floor((batches.length - count) / 2)), few = batches.slice(from, from + count);
  const on = (number) => byBatch.get(number).filter((at) => stage[at] >= COPY_IN && stage[at] <= COPY_OUT);
  const all = few.flatMap(on);
  if (!all.length) return show(-last * .02, last * 1.02);
  const [low, high] = [Math.min(...all.map((at) => begin[at])), Math.max(...all.map((at) => end[at]))];
  show(low - (high - low) * .02, high + (high - low) * .02);
}
function step(by) {
  const at = selected === null ? Math.floor(batches.length / 2) : batches.indexOf(selected) + by;
  if (batches[at] === undefined) return;
  select(batches[at]);
  const of = byBatch.get(batches[at]), middle = (begin[of[0]] + end[of.at(-1)]) / 2, half = (view.to - view.from) / 2;
  if (middle < view.from || middle > view.to) show(middle - half, middle + half);
}
const actions = {
  left: () => move(-.25), right: () => move(.25), in: () => zoom(.6), out: () => zoom(1 / .6),
  all: () => show(-last * .02, last * 1.02), middle: () => show(last / 4, last * 3 / 4), some: () => some(8),
  before: () => step(-1), after: () => step(1),
  none: () => { if (selected !== null) select(null); },
  theme: () => {
    const now = document.documentElement.dataset.theme, next = { undefined: "light", light: "dark" }[now];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    byId("theme").textContent = `theme: ${next ?? "auto"}`;
    theme();
  },
};
const KEYS = {
  a: "left", ArrowLeft: "left", d: "right", ArrowRight: "right", w: "in", "+": "in", "=": "in", s: "out", "-": "out",
  0: "all", m: "middle", b: "some", ",": "before", ".": "after", Escape: "none", t: "theme",
};
document.addEventListener("keydown", (event) => {
  const action = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  actions[action]();
});
document.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", actions[button.dataset.do]));
byId("theme").addEventListener("click", actions.theme);

const moment = (canvas, clientX, [from, to]) => {
  const box = canvas.getBoundingClientRect();
  return from + (clientX - box.left) / box.width * (to - from);
};
const inView = (event) => moment(chart, event.clientX, [view.from, view.to]);

chart.addEventListener("wheel", (event) => {
  event.preventDefault();
  const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
    move((event.deltaX || event.deltaY) * unit / chart.clientWidth);
  else zoom(Math.exp(event.deltaY * unit * (event.ctrlKey ? .01 : .002)), inView(event));
}, { passive: false });

const pointers = new Map();
let travelled = 0;
chart.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  if (pointers.size === 0) travelled = 0;
  pointers.set(event.pointerId, event.clientX);
  chart.setPointerCapture(event.pointerId);
});
chart.addEventListener("pointermove", (event) => {
  if (!pointers.has(event.pointerId)) return hover(event);
  const before = pointers.get(event.pointerId), box = chart.getBoundingClientRect();
  travelled += Math.abs(event.clientX - before);
  pointers.set(event.pointerId, event.clientX);
  if (pointers.size === 1) return move((before - event.clientX) / box.width);
  const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
  const [was, is] = [Math.abs(before - other), Math.abs(event.clientX - other)];
  if (is > 4 && was > 4) zoom(was / is, moment(chart, other, [view.from, view.to]));
});
for (const over of ["pointerup", "pointercancel"])
  chart.addEventListener(over, (event) => {
    if (!pointers.delete(event.pointerId) || over !== "pointerup" || travelled > 5) return;
    const at = hit(event);
    if (at !== null) select(batch[at]);
  });
chart.addEventListener("pointerleave", () => { hovered = null; tip.hidden = true; draw(); });
chart.addEventListener("dblclick", (event) => zoom(.4, inView(event)));

function jump(event) {
  if (event.type === "pointermove" && !(event.buttons & 1)) return;
  if (event.type === "pointerdown") overview.setPointerCapture(event.pointerId);
  const middle = moment(overview, event.clientX, [0, last]), half = (view.to - view.from) / 2;
  show(middle - half, middle + half);
}
for (const type of ["pointerdown", "pointermove"]) overview.addEventListener(type, jump);

// ---- batches

/** The innermost interval under a pointer, or the nearest one beside it. */
function hit(event) {
  const y = event.clientY - chart.getBoundingClientRect().top, when = inView(event);
  const slack = (view.to - view.from) / chart.clientWidth * 2;
  const index = places().findIndex((top) => y >= top && y < top + ROW * rem);
  if (index < 0) return null;
  let found = null, least = slack;
  const lane = lanes[index];
  for (let place = first(lane, when - slack); place < lane.of.length && begin[lane.of[place]] <= when + slack; place++) {
    const at = lane.of[place];
    const off = Math.max(begin[at] - when, when - end[at], 0);
    if (off > least || (found !== null && off === least && took[at] > took[found])) continue;
    [found, least] = [at, off];
  }
  return found;
}

function hover(event) {
  const at = hit(event);
  if (at !== hovered) {
    hovered = at;
    draw();
  }
  tip.hidden = at === null;
  if (at === null) return;
  tip.replaceChildren(
    element("b", `${called(at)} of batch ${batch[at]}`),
    element("span", `${time(took[at])}, at ${(begin[at] / 1e6).toFixed(3)} ms`),
    ...facts(at).map((fact) => element("span", fact)));
  const [wide, high] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - wide - 8))}px`;
  tip.style.top = `${event.clientY + 18 + high > innerHeight ? Math.max(4, event.clientY - high - 12) : event.clientY + 18}px`;
}

function select(number) {
  selected = number;
  const panel = byId("batch");
  panel.hidden = number === null;
  draw();
  if (number === null) return;
  const of = byBatch.get(number), start = begin[of.find((at) => stages[stage[at]] === "submit") ?? of[0]];
  const line = (at) => [called(at), `${begin[at] < start ? "−" : "+"}${time(Math.abs(begin[at] - start))}`, time(took[at]), facts(at).slice(1).join("; ")];
  const scroll = element("div", undefined, "scroll");
  const facing = (at) => line(at).map((text, column) => element("td", text, column === 3 ? "text" : ""));
  scroll.append(table(["stage", "from submit", "took", ""], of.map(facing)));
  panel.replaceChildren(element("h2", `Batch ${number}: slot ${slot[of[0]]}, ${counted(rows[of[0]])} rows`), scroll);
  const ran = program(of[0]);
  if (!ran) return;
  const most = Math.max(...ran.layers.map((layer) => layer.flops), 1);
  const bar = (layer) => {
    const cell = element("td", (layer.flops / 1e6).toFixed(1)), drawn = element("span", undefined, "bar");
    drawn.style.width = `${6 * layer.flops / most}em`;
    const space = element("span");
    space.style.cssText = `display:inline-block;width:${6.4 - 6 * layer.flops / most}em`;
    cell.append(drawn, space);
    return cell;
  };
  const layers = element("details"), inside = element("div", undefined, "scroll");
  layers.append(element("summary", `${ran.layers.length} layers of ${about.model || "the model"}, planned for ${planned(ran)}`), inside);
  inside.append(
    element("p", "They run as one launch, so a trace has no times of single layers; nsys has them."),
    table(["layer", "operation", "kernel", "MFLOP", "KiB moved"], ran.layers.map((layer) =>
      [layer.model ? `${layer.model}: ${layer.name}` : layer.name, layer.operation, layer.kernel, bar(layer), (layer.bytes / 1024).toFixed(0)].map((text, at) =>
        text instanceof Node ? text : element("td", text, at < 3 ? "text" : ""))), 3));
  panel.append(layers);
}

// ---- the page

function figure(value, what, more) {
  const made = element("div", undefined, "figure");
  made.append(element("b", value), element("i", what), element("small", more));
  byId("figures").append(made);
}
function build() {
  const forgotten = report.dropped ? `; ${counted(report.dropped)} older ones forgotten` : "";
  byId("about").textContent = `${report.device}: ${counted(report.batches)} batches, ${counted(report.rows)} rows in ${seconds(report.seconds)}${forgotten}`;
  const compute = report.stages.find((of) => of.stage === "compute");
  figure(percent(report.copy_under_compute_middle), "of copying under compute", `middle half; ${percent(report.copy_under_compute)} in all`);
  if (compute) figure(percent(compute.busy_middle), "compute busy", `middle half; ${seconds(compute.p50)} a batch`);
  figure(counted(report.images_per_second), "rows a second", "middle half");
  figure(seconds(report.latency.p50), "submit to done", `median; 99 % within ${seconds(report.latency.p99)}`);
  figure(report.slowest, "is the slowest stage", report.gaps.count ? `${counted(report.gaps.count)} gaps in the middle half, ${seconds(report.gaps.seconds)} in all` : "no gap in the middle half");
  const head = ["stage", "busy", "middle half", "mean", "median", "90 %", "99 %", "max"];
  byId("stages").querySelector("div").append(table(head, report.stages.map((of) =>
    [of.model ? `– ${of.model}` : of.stage, percent(of.busy), percent(of.busy_middle), ...[of.mean, of.p50, of.p90, of.p99, of.max].map(seconds)])));
  for (const number of [...new Set(slot)].sort((a, b) => a - b).slice(0, 6)) {
    const key = element("span", `slot ${number}`, "key");
    key.style.setProperty("--of", `var(--c${number % 6})`);
    byId("keys").append(key);
  }
  let group = null;
  for (const lane of lanes) {
    if (lane.group !== group) byId("names").append(element("div", lane.group, "group"));
    group = lane.group;
    const name = element("div", lane.name.replace(/^trefoil-/, ""));
    name.title = lane.name;
    byId("names").append(name);
  }
}

build();
new ResizeObserver(theme).observe(chart);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
theme();
if (batches.length > 24) some(8);
else actions.all();
