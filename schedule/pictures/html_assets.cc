#include "schedule/pictures/html_assets.h"

namespace stagecoach::schedule {

const char kPageStyle[] = R"css(
:root{color-scheme:light dark;--page:#f6f8fa;--card:#fff;--ink:#1b2430;--mute:#5d6979;--line:#dbe1e9;--accent:#2f6fd0}
@media (prefers-color-scheme:dark){:root{--page:#0b0f15;--card:#11161e;--ink:#e4e9f0;--mute:#98a4b5;--line:#2c3644;--accent:#79a9f5}}
*{box-sizing:border-box}
body{margin:0;padding:20px 24px;background:var(--page);color:var(--ink);font:14px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:6px 28px;margin:0 0 14px}
h1{font-size:20px;line-height:1.2;font-weight:650;margin:0;overflow-wrap:anywhere}
.facts{display:flex;flex-wrap:wrap;gap:4px 22px;margin:0}
.facts div{display:flex;gap:7px;align-items:baseline}
dt{color:var(--mute)}dd{margin:0;font-weight:600;font-variant-numeric:tabular-nums}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;overflow:hidden}
.bar{display:flex;flex-wrap:wrap;align-items:center;gap:8px 18px;padding:9px 14px;border-bottom:1px solid var(--line)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;flex:1}
.legend span{display:inline-flex;align-items:center;gap:6px;white-space:nowrap}
.legend svg{display:block;border-radius:3px}
.tools{display:flex;align-items:center;gap:12px}
.tools label{display:inline-flex;align-items:center;gap:6px;cursor:pointer}
.tools input{margin:0;accent-color:var(--accent)}
.zoom{display:inline-flex;border:1px solid var(--line);border-radius:7px;overflow:hidden}
.zoom button{appearance:none;border:0;border-left:1px solid var(--line);background:none;color:inherit;font:inherit;min-width:32px;height:28px;padding:0 9px;cursor:pointer}
.zoom button:first-child{border-left:0}
.zoom button:hover{background:var(--page)}
button:focus-visible,#chart:focus-visible{outline:2px solid var(--accent);outline-offset:-2px}
#chart{display:block;width:100%;touch-action:pan-y;cursor:grab;user-select:none;-webkit-user-select:none;font-size:12px}
#chart.dragging{cursor:grabbing}
#chart text{pointer-events:none}
.name{font-weight:600}
.n{fill:#152030;font-size:11px;text-anchor:middle}
.message{fill:none;stroke-width:.8;opacity:.65}
.same{fill:none;stroke:var(--ink);stroke-width:1.6}
.here{fill:none;stroke:var(--ink);stroke-width:1;opacity:.35}
#tip{position:fixed;z-index:2;pointer-events:none;max-width:340px;padding:8px 11px;border:1px solid var(--line);border-radius:8px;background:var(--card);box-shadow:0 6px 24px #0003;font-size:13px;font-variant-numeric:tabular-nums}
#tip b{display:block;margin-bottom:2px}
#tip table{border-spacing:0;width:100%}#tip td{padding:0}#tip td:first-child{color:var(--mute);padding-right:12px}#tip td:last-child{text-align:right}
.below{display:flex;flex-wrap:wrap;gap:14px 28px;align-items:flex-start;margin-top:16px}
.scroll{overflow:auto;max-height:70vh}
.below table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.below th,.below td{padding:5px 16px;text-align:right;white-space:nowrap;border-top:1px solid var(--line)}
.below th{position:sticky;top:0;background:var(--card);border-top:0;color:var(--mute);font-weight:500}
.below th:first-child,.below td:first-child{text-align:left}
.help{color:var(--mute);margin:0;flex:1;min-width:240px}
kbd{font:inherit;font-size:12px;border:1px solid var(--line);border-radius:4px;padding:0 5px;background:var(--card)}
@media print{body{padding:0}.tools,.help{display:none}}
)css";

const char kPageScript[] = R"js(
"use strict";
const chart = document.getElementById("chart"), tip = document.getElementById("tip");
const toggle = document.getElementById("messages");
const LEFT = 74, RIGHT = 16, TOP = 34;
const count = D.traces.reduce((sum, trace) => sum + trace.ranks.length, 0);
const GAP = toggle && count <= 16 ? 10 : 5;
const NAME = D.traces.length > 1 ? 26 : 0;  // height of the line with a trace's name
const rowHeight = count <= 8 ? 38 : count <= 16 ? 28 : count <= 40 ? 20 : 14;
const height = TOP + D.traces.length * NAME + count * (rowHeight + GAP) + 8;
const step = Math.max(1, D.step);
let from = 0, to = step;  // what is shown, in ns
let width = 0, same = null, hoverX = null, frame = 0;

// Row: trace, rank, y, boxes. Box: op, stage, micro, start, end, bytes, band, row.
const rows = [], messages = [];
D.traces.forEach((trace, index) => {
  const own = trace.ranks.map((list, rank) => {
    const y = TOP + (index + 1) * NAME + (rows.length + rank) * (rowHeight + GAP);
    const row = {trace, rank, y};
    let start = 0;
    row.boxes = list.map(([op, stage, micro, delta, duration, bytes, band]) => {
      start += delta;
      return {op, stage, micro, start, end: start + duration, bytes, band, row};
    });
    return row;
  });
  rows.push(...own);
  for (const [gradient, rank, start, peer, end] of trace.messages) {
    messages.push({gradient, start, end, from: own[rank].y, to: own[peer].y});
  }
});

const X = t => LEFT + (width - LEFT - RIGHT) * (t - from) / (to - from);
const timeAt = x => from + (to - from) * (x - LEFT) / (width - LEFT - RIGHT);
const boxY = box => box.row.y + (box.band === 2 ? rowHeight / 2 : 0);
const boxHeight = box => box.band ? rowHeight / 2 : rowHeight;
const time = ns => (ns / D.unitNs).toFixed(D.unitNs > 1 ? 3 : 0) + " " + D.unit;
const size = bytes => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; unit < 4 && bytes >= 999.95; ++unit) bytes /= 1000;
  return (unit ? bytes.toFixed(1) : bytes) + " " + units[unit];
};

// The first of a rank's boxes that ends after the time. Boxes are also in order of their ends,
// except for those performed together, which end at once or nearly so.
function firstEndingAfter(list, t) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].end > t) high = middle; else low = middle + 1;
  }
  return Math.max(0, low - 1);
}

function eachVisible(visit) {
  for (const {boxes: list} of rows) {
    for (let i = firstEndingAfter(list, from); i < list.length && list[i].start < to; ++i) {
      if (list[i].end > from) visit(list[i]);
    }
  }
}

const rectangle = (x, y, w, h) =>
  `M${x.toFixed(2)} ${y.toFixed(1)}h${w.toFixed(2)}v${h}h${(-w).toFixed(2)}z`;

function outline(box) {
  const x = Math.max(X(box.start), LEFT - 3), right = Math.min(X(box.end), width - RIGHT + 3);
  return rectangle(x, boxY(box), Math.max(0.3, right - x - Math.min(1, (right - x) / 5)),
                   boxHeight(box));
}

function drawAxis() {
  const wanted = (to - from) / (width - LEFT - RIGHT) * 92;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const interval = [1, 2, 5, 10].map(d => d * power).find(d => d >= wanted);
  const digits = Math.max(0, Math.ceil(-Math.log10(interval / D.unitNs) - 1e-9));
  let grid = "", labels = "";
  for (let t = Math.ceil(from / interval) * interval; t <= to; t += interval) {
    const x = X(t).toFixed(2);
    grid += `M${x} ${TOP - 8}V${height - 8}`;
    if (x > width - RIGHT - 30) continue;  // no room for the label
    labels += `<text class="mute" x="${x}" y="${TOP - 14}">${(t / D.unitNs).toFixed(digits)}</text>`;
  }
  return `<path class="grid" d="${grid}"/>` + labels +
    `<text class="mute" x="16" y="${TOP - 14}">${D.unit}</text>`;
}

function drawRows() {
  let tracks = "", labels = "";
  for (const {trace, rank, y} of rows) {
    const end = Math.min(X(Math.max(1, trace.step)), width - RIGHT);
    if (end > LEFT) tracks += rectangle(LEFT, y, end - LEFT, rowHeight);
    labels += `<text class="ink" x="16" y="${y + rowHeight / 2 + 4}">rank ${rank}</text>`;
    if (NAME && !rank) labels += `<text class="ink name" x="16" y="${y - 8}">${trace.name}</text>`;
  }
  return [`<path class="track" d="${tracks}"/><path fill="url(#idle)" d="${tracks}"/>`, labels];
}

function drawBoxes() {
  const paths = new Map();
  let numbers = "", marked = "";
  eachVisible(box => {
    const key = D.colors[box.op] + (box.stage < 0 ? 0 : box.row.trace.chunks[box.stage]);
    let path = paths.get(key);
    if (!path) paths.set(key, path = []);
    path.push(outline(box));
    if (box.micro < 0) return;
    if (box.micro === same) marked += outline(box);
    const x1 = Math.max(X(box.start), LEFT), x2 = Math.min(X(box.end), width - RIGHT);
    if (x2 - x1 < 2 + 6.4 * String(box.micro).length || boxHeight(box) < 10) return;
    const y = boxY(box) + boxHeight(box) / 2 + 4;
    numbers += `<text class="n" x="${((x1 + x2 - 1) / 2).toFixed(1)}" y="${y}">${box.micro}</text>`;
  });
  let text = "";
  for (const [key, path] of paths) text += `<path class="${key}" d="${path.join("")}"/>`;
  return text + numbers + (marked && `<path class="same" d="${marked}"/>`);
}

function drawMessages() {
  if (!toggle || !toggle.checked) return "";
  const paths = ["", ""];
  const shown = messages.filter(m => m.start < to && m.end > from);
  const head = shown.length <= 400;
  for (const m of shown) {
    const down = m.to > m.from;
    const x1 = X(m.start), x2 = X(m.end);
    const y1 = m.from + (down ? rowHeight : 0), y2 = m.to + (down ? 0 : rowHeight);
    let line = `M${x1.toFixed(1)} ${y1}L${x2.toFixed(1)} ${y2}`;
    if (head) {
      const length = Math.hypot(x2 - x1, y2 - y1), dx = (x2 - x1) / length * 4, dy = (y2 - y1) / length * 4;
      line += `M${(x2 - dx - dy / 2).toFixed(1)} ${(y2 - dy + dx / 2).toFixed(1)}L${x2.toFixed(1)} ${y2}` +
        `L${(x2 - dx + dy / 2).toFixed(1)} ${(y2 - dy - dx / 2).toFixed(1)}`;
    }
    paths[m.gradient] += line;
  }
  return `<path class="message forth" d="${paths[0]}"/><path class="message back" d="${paths[1]}"/>`;
}

function draw() {
  frame = 0;
  width = Math.max(320, chart.clientWidth);
  const [tracks, labels] = drawRows();
  const here = hoverX === null ? "" :
    `<path class="here" d="M${hoverX.toFixed(1)} ${TOP - 8}V${height - 8}"/>`;
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("height", height);
  chart.innerHTML = '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" ' +
    'patternTransform="rotate(45)"><path class="hatch" d="M0 0V6"/></pattern><clipPath id="plot">' +
    `<rect x="${LEFT}" y="0" width="${width - LEFT - RIGHT}" height="${height}"/></clipPath></defs>` +
    tracks + drawAxis() + `<g clip-path="url(#plot)">${drawBoxes()}${drawMessages()}${here}</g>` + labels;
}
const redraw = () => { if (!frame) frame = requestAnimationFrame(draw); };

function show(start, length) {
  length = Math.min(step, Math.max(length, Math.min(step, 20)));
  from = Math.min(Math.max(0, start), step - length);
  to = from + length;
  redraw();
}
const zoom = (factor, at = (from + to) / 2) =>
  show(at - (at - from) * factor, (to - from) * factor);
const pan = share => show(from + (to - from) * share, to - from);

// ---- Hover ----

function boxAt({boxes: list}, y, t) {
  for (let i = firstEndingAfter(list, t); i < list.length && list[i].start <= t; ++i) {
    const box = list[i];
    if (t < box.end && y >= boxY(box) && y < boxY(box) + boxHeight(box)) return box;
  }
  return null;
}

const row = (label, value) => `<tr><td>${label}</td><td>${value}</td></tr>`;
const nameOf = box => D.ops[box.op] + (box.stage < 0 ? "" : `, stage ${box.stage}`) +
  (box.micro < 0 ? "" : `, micro-batch ${box.micro}`);

function describe(box) {
  return `<b>${nameOf(box)}</b><table>` + row("start", time(box.start)) + row("end", time(box.end)) +
    row("duration", time(box.end - box.start)) + (box.bytes ? row("stash after", size(box.bytes)) : "") +
    "</table>";
}

function describeIdle({boxes: list, trace}, t) {
  let next = firstEndingAfter(list, t);
  while (next < list.length && list[next].start <= t) ++next;
  const start = next ? list[next - 1].end : 0;
  const end = next < list.length ? list[next].start : trace.step;
  return "<b>idle</b><table>" + row("from", time(start)) + row("until", time(end)) +
    row("duration", time(end - start)) + "</table>" +
    (next < list.length ? `then ${nameOf(list[next])}` : "until the end of the step");
}

function hover(event) {
  const area = chart.getBoundingClientRect();
  const x = event.clientX - area.left, y = event.clientY - area.top;
  const inPlot = x >= LEFT && x <= width - RIGHT;
  const row = inPlot && rows.find(row => y >= row.y && y < row.y + rowHeight && timeAt(x) <= row.trace.step);
  const box = row ? boxAt(row, y, timeAt(x)) : null;
  hoverX = inPlot ? x : null;
  same = box && box.micro >= 0 ? box.micro : null;
  tip.hidden = !row;
  if (!tip.hidden) {
    tip.innerHTML = box ? describe(box) : describeIdle(row, timeAt(x));
    const room = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - room.width - 8)) + "px";
    const below = event.clientY + 18;
    tip.style.top = (below + room.height < innerHeight ? below : event.clientY - room.height - 12) + "px";
  }
  redraw();
}

// ---- Reader ----

let drag = null;
chart.addEventListener("pointerdown", event => {
  drag = {x: event.clientX, from};
  chart.setPointerCapture(event.pointerId);
  chart.classList.add("dragging");
});
chart.addEventListener("pointermove", event => {
  if (!drag) return hover(event);
  tip.hidden = true;
  hoverX = null;
  show(drag.from - (event.clientX - drag.x) * (to - from) / (width - LEFT - RIGHT), to - from);
});
for (const type of ["pointerup", "pointercancel"]) {
  chart.addEventListener(type, () => { drag = null; chart.classList.remove("dragging"); });
}
chart.addEventListener("pointerleave", () => { tip.hidden = true; hoverX = same = null; redraw(); });
chart.addEventListener("wheel", event => {
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    return pan((event.deltaX || event.deltaY) / 1000);
  }
  zoom(1.0015 ** event.deltaY, timeAt(event.clientX - chart.getBoundingClientRect().left));
  hover(event);
}, {passive: false});
chart.addEventListener("dblclick", () => show(0, step));
const keys = {
  "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), "0": () => show(0, step),
  ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
};
chart.addEventListener("keydown", event => {
  const action = keys[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
});
document.getElementById("closer").addEventListener("click", keys["+"]);
document.getElementById("wider").addEventListener("click", keys["-"]);
document.getElementById("all").addEventListener("click", keys["0"]);
if (toggle) toggle.addEventListener("change", redraw);
new ResizeObserver(redraw).observe(chart);
draw();
)js";

}  // namespace stagecoach::schedule
