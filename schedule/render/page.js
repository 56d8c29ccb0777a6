"use strict";
const chart = document.getElementById("chart"), tip = document.getElementById("tip");
// Either is null where there is nothing to show.
const messagesToggle = document.getElementById("messages");
const stashToggle = document.getElementById("stash");
const LEFT = 74, RIGHT = 16, TOP = 34;
const count = D.traces.reduce((sum, trace) => sum + trace.ranks.length, 0);
const GAP = messagesToggle && count <= 16 ? 10 : 5;
const NAME = D.traces.length > 1 ? 26 : 0;  // height of the line with a trace's name
const rowHeight = count <= 8 ? 38 : count <= 16 ? 28 : count <= 40 ? 20 : 14;
const stashHeight = Math.max(12, Math.round(rowHeight * 0.6));
const step = Math.max(1, D.step);
let from = 0, to = step;  // what is shown, in ns
let width = 0, height = 0, same = null, hoverX = null, frame = 0;

// Row: trace, rank, y, stashY, boxes, and levels and peak of its stash if that is known.
// Box: op, stage, micro, start, end, band, row. Level: start, amount.
const rows = [], messages = [], copies = [];
const mostStash = {true: 0, false: 0};  // of all rows; in bytes, in micro-batches
for (const trace of D.traces) {
  const own = trace.ranks.map((list, rank) => {
    const row = {trace, rank};
    let start = 0;
    row.boxes = list.map(([op, stage, micro, delta, duration, band]) => {
      start += delta;
      return {op, stage, micro, start, end: start + duration, band, row};
    });
    if (!trace.stash) return row;
    start = 0;
    const {peak, at, levels} = trace.stash.ranks[rank];
    row.levels = levels.map(([delta, amount]) => ({start: start += delta, amount}));
    row.peak = {start: at, amount: peak};
    mostStash[trace.stash.inBytes] = Math.max(mostStash[trace.stash.inBytes], peak);
    return row;
  });
  rows.push(...own);
  for (const [gradient, rank, start, peer, end] of trace.messages) {
    messages.push({gradient, start, end, from: own[rank], to: own[peer]});
  }
  for (const [op, stage, rank, start, end] of trace.copies) {
    copies.push({look: D.colors[op] + trace.chunks[stage], back: D.ops[op] === "FETCH", start, end, row: own[rank]});
  }
}

const showsStash = row => row.levels && stashToggle.checked;

function layOut() {
  let y = TOP;
  for (const row of rows) {
    if (!row.rank) y += NAME;
    row.y = y;
    row.stashY = y += rowHeight;
    if (showsStash(row)) y += stashHeight + 3;
    y += GAP;
  }
  height = y + 8;
}

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
const stashed = ({trace}, amount) =>
  trace.stash.inBytes ? size(amount) : +amount.toPrecision(4) + "";

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

// The index of the level that a rank's stash has at a time; -1 before the first.
function levelAt({levels}, t) {
  let low = 0, high = levels.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (levels[middle].start > t) high = middle; else low = middle + 1;
  }
  return low - 1;
}
const stashAt = (row, t) => row.levels[levelAt(row, t)]?.amount ?? 0;

// Steps over time on one scale for all rows, and a dot at the peak.
function drawStash() {
  let steps = "", dots = "", labels = "";
  for (const row of rows.filter(showsStash)) {
    const base = row.stashY + 2 + stashHeight;
    const heightOf = amount => amount / mostStash[row.trace.stash.inBytes] * stashHeight;
    const y = amount => (base - heightOf(amount)).toFixed(1);
    const end = Math.min(to, row.trace.step);
    if (end > from) {
      steps += `M${X(from).toFixed(2)} ${base}V${y(stashAt(row, from))}`;
      for (let i = levelAt(row, from) + 1; i < row.levels.length && row.levels[i].start < end; ++i) {
        steps += `H${X(row.levels[i].start).toFixed(2)}V${y(row.levels[i].amount)}`;
      }
      steps += `H${X(end).toFixed(2)}V${base}z`;
    }
    const {start, amount} = row.peak;
    if (amount) dots += `<circle class="peak" cx="${X(start).toFixed(2)}" cy="${y(amount)}" r="2.5"/>`;
    labels += `<text class="mute" font-size="11" x="16" y="${base}">${stashed(row, amount)}</text>`;
  }
  return [steps && `<path class="stash" d="${steps}"/>${dots}`, labels];
}

// ---- Bands, where passes have no room (bands.h) ----

const MIN_PASS = 10, MIN_ALIKE = 3, MIN_UNLIKE = 12;
const lookOf = box => D.colors[box.op] + (box.stage < 0 ? 0 : box.row.trace.chunks[box.stage]);
const isPass = box => box.micro >= 0;

function isCrowded() {
  let passes = 0, narrow = 0;
  eachVisible(box => {
    if (!isPass(box)) return;
    ++passes;
    if (X(box.end) - X(box.start) < MIN_PASS) ++narrow;
  });
  return 4 * narrow > passes;
}

// Calls visit(begin, end, until) for each group of a rank's boxes; it is drawn until the next one if
// that follows at once, so that there is no seam. Groups do not depend on what is shown, so that they
// stay when that moves.
function eachGroup(list, visit) {
  const gap = timeAt(MIN_PASS) - timeAt(0);
  const follows = i => isPass(list[i]) && isPass(list[i - 1]) && list[i].start - list[i - 1].end < gap;
  const alike = (a, b) => lookOf(a) === lookOf(b) && a.band === b.band;
  let unlike = 0;
  const found = (begin, end) => {
    let until = end < list.length && follows(end) ? list[end].start : 0;
    for (let i = begin; i < end; ++i) until = Math.max(until, list[i].end);
    visit(begin, end, until);
  };
  const groupUnlike = end => {
    while (unlike < end) {
      const own = end - unlike < 2 * MIN_UNLIKE ? end - unlike : MIN_UNLIKE;
      found(unlike, unlike += own);
    }
  };
  for (let i = 0; i < list.length;) {
    let end = i + 1;
    while (end < list.length && follows(end) && alike(list[end], list[i])) ++end;
    const isOwn = end - i >= MIN_ALIKE || !isPass(list[i]);
    if (isOwn || i && !follows(i)) groupUnlike(i);
    if (isOwn) found(i, unlike = end);
    i = end;
  }
  groupUnlike(list.length);
}

// Adds the bands of a group to the paths by look.
function addBands(row, boxes, end, add) {
  const start = boxes[0].start;
  if (end <= from || start >= to) return;
  const times = {}, ops = {};
  for (const box of boxes) {
    const look = lookOf(box);
    ops[look] = box.op;
    times[look] = (times[look] ?? 0) + (box.end - box.start) * (box.band ? 0.5 : 1);
  }
  const x = Math.max(X(start), LEFT - 3), right = Math.min(X(end), width - RIGHT + 3);
  let y = row.y;
  for (const look of Object.keys(times).sort((a, b) => ops[a] - ops[b] || (a < b ? -1 : 1))) {
    const high = times[look] / (end - start) * rowHeight;
    add(look, `M${x.toFixed(2)} ${y.toFixed(2)}H${right.toFixed(2)}v${high.toFixed(2)}H${x.toFixed(2)}z`);
    y += high;
  }
}

function drawBoxes(crowded) {
  const paths = new Map();
  let numbers = "", marked = "";
  const add = (look, path) => {
    if (!paths.has(look)) paths.set(look, []);
    paths.get(look).push(path);
  };
  if (crowded) {
    for (const row of rows) {
      eachGroup(row.boxes, (begin, end, until) => {
        if (end - begin > 1) return addBands(row, row.boxes.slice(begin, end), until, add);
        const box = row.boxes[begin];
        if (box.end > from && box.start < to) add(lookOf(box), outline(box));
      });
    }
  }
  eachVisible(box => {
    if (!crowded) add(lookOf(box), outline(box));
    if (box.micro < 0) return;
    if (box.micro === same) marked += outline(box);
    if (crowded) return;
    const x1 = Math.max(X(box.start), LEFT), x2 = Math.min(X(box.end), width - RIGHT);
    if (x2 - x1 < 2 + 6.4 * String(box.micro).length || boxHeight(box) < 10) return;
    const y = boxY(box) + boxHeight(box) / 2 + 4;
    numbers += `<text class="n" x="${((x1 + x2 - 1) / 2).toFixed(1)}" y="${y}">${box.micro}</text>`;
  });
  let text = "";
  const edges = crowded ? ' shape-rendering="crispEdges"' : "";  // bands side by side have no seam
  for (const [key, path] of paths) text += `<path class="${key}"${edges} d="${path.join("")}"/>`;
  return text + numbers + (marked && `<path class="same" d="${marked}"/>`);
}

function drawMessages(crowded) {
  if (!messagesToggle?.checked || crowded) return "";
  const paths = ["", ""];
  const shown = messages.filter(m => m.start < to && m.end > from);
  const head = shown.length <= 400;
  for (const m of shown) {
    const down = m.to.y > m.from.y;
    const x1 = X(m.start), x2 = X(m.end);
    const y1 = m.from.y + (down ? rowHeight : 0), y2 = m.to.y + (down ? 0 : rowHeight);
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

// Below the row, those of each direction on a line of their own.
function drawCopies() {
  const LINE = 2.2;
  let text = "";
  for (const copy of copies) {
    if (copy.end <= from || copy.start >= to) continue;
    const y = copy.row.y + rowHeight + (copy.back ? LINE : 0), x = X(copy.start);
    text += `<rect class="${copy.look}" x="${x.toFixed(2)}" y="${y.toFixed(1)}" ` +
      `width="${(X(copy.end) - x).toFixed(2)}" height="${LINE - 0.4}"/>`;
  }
  return text;
}

function draw() {
  frame = 0;
  width = Math.max(320, chart.clientWidth);
  layOut();
  const [tracks, labels] = drawRows();
  const [stash, peaks] = drawStash();
  const crowded = isCrowded();
  const here = hoverX === null ? "" :
    `<path class="here" d="M${hoverX.toFixed(1)} ${TOP - 8}V${height - 8}"/>`;
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("height", height);
  chart.innerHTML = '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" ' +
    'patternTransform="rotate(45)"><path class="hatch" d="M0 0V6"/></pattern><clipPath id="plot">' +
    `<rect x="${LEFT}" y="0" width="${width - LEFT - RIGHT}" height="${height}"/></clipPath></defs>` +
    tracks + drawAxis() +
    `<g clip-path="url(#plot)">${stash}${drawBoxes(crowded)}${drawCopies()}${drawMessages(crowded)}${here}</g>` + labels + peaks;
  for (const name of chart.querySelectorAll(".name")) {
    const text = name.textContent, fits = (width - 32) / name.getComputedTextLength();
    const half = Math.floor((text.length * fits - 2) / 2);
    if (fits < 1) name.textContent = text.slice(0, half) + "\u2026" + text.slice(-half);
  }
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

const line = (label, value) => `<tr><td>${label}</td><td>${value}</td></tr>`;
const stashLine = (row, label, amount) =>
  row.levels ? line(label, stashed(row, amount) + (row.trace.stash.inBytes ? "" : " micro-batches")) : "";
const nameOf = box => D.ops[box.op] + (box.stage < 0 ? "" : `, stage ${box.stage}`) +
  (box.micro < 0 ? "" : `, micro-batch ${box.micro}`);

function describe(box, t) {
  return `<b>${nameOf(box)}</b><table>` + line("start", time(box.start)) +
    line("end", time(box.end)) + line("duration", time(box.end - box.start)) +
    stashLine(box.row, "stash", stashAt(box.row, t)) + "</table>";
}

function describeStash(row, t) {
  return `<b>stash of rank ${row.rank}</b><table>` + line("at", time(t)) +
    stashLine(row, "stash", stashAt(row, t)) + stashLine(row, "peak", row.peak.amount) + "</table>";
}

function describeIdle(row, t) {
  const {boxes: list, trace} = row;
  let next = firstEndingAfter(list, t);
  while (next < list.length && list[next].start <= t) ++next;
  const start = next ? list[next - 1].end : 0;
  const end = next < list.length ? list[next].start : trace.step;
  return "<b>idle</b><table>" + line("from", time(start)) + line("until", time(end)) +
    line("duration", time(end - start)) +
    stashLine(row, "stash", stashAt(row, t)) + "</table>" +
    (next < list.length ? `then ${nameOf(list[next])}` : "until the end of the step");
}

function hover(event) {
  const area = chart.getBoundingClientRect();
  const x = event.clientX - area.left, y = event.clientY - area.top;
  const inPlot = x >= LEFT && x <= width - RIGHT, t = timeAt(x);
  const bottom = row => row.stashY + (showsStash(row) ? stashHeight + 3 : 0);
  const row = inPlot && rows.find(row => y >= row.y && y < bottom(row) && t <= row.trace.step);
  const box = row ? boxAt(row, y, t) : null;
  hoverX = inPlot ? x : null;
  same = box && box.micro >= 0 ? box.micro : null;
  tip.hidden = !row;
  if (!tip.hidden) {
    tip.innerHTML =
      box ? describe(box, t) : y < row.stashY ? describeIdle(row, t) : describeStash(row, t);
    const room = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - room.width - 8)) + "px";
    const below = event.clientY + 18;
    tip.style.top = (below + room.height < innerHeight ? below : event.clientY - room.height - 12) + "px";
  }
  redraw();
}

// ---- Saving ----

// The legend as it stands on the page, and its height.
function legend() {
  const list = document.querySelector(".legend"), area = list.getBoundingClientRect();
  let markup = "";
  for (const item of list.children) {
    const place = item.getBoundingClientRect(), swatch = item.querySelector("svg");
    const x = place.left - area.left, y = place.top - area.top + place.height / 2;
    const textX = swatch ? x + swatch.getBoundingClientRect().width + 6 : x;
    if (swatch) markup += `<g transform="translate(${x} ${y - 6})">${swatch.innerHTML}</g>`;
    markup += `<text class="ink" x="${textX}" y="${y + 4}">${item.textContent}</text>`;
  }
  return [markup, area.height];
}

// What is shown, with title and legend: an SVG file that needs nothing else.
function picture() {
  const TITLE = 40;
  same = hoverX = null;
  draw();
  const [items, itemsHeight] = legend();
  const svg = document.createElementNS(chart.namespaceURI, "svg");
  const attributes = {
    width, height: TITLE + height + itemsHeight + 16, "font-family": "system-ui,sans-serif", "font-size": 12,
  };
  for (const [name, value] of Object.entries(attributes)) svg.setAttribute(name, value);
  svg.setAttribute("viewBox", `0 0 ${width} ${attributes.height}`);
  svg.innerHTML = '<style></style><rect class="bg" width="100%" height="100%"/>' +
    `<text class="ink title" x="16" y="31">${document.querySelector("h1").innerHTML}</text>` +
    `<g transform="translate(0 ${TITLE})">${chart.innerHTML}</g>` +
    `<g transform="translate(16 ${TITLE + height})">${items}</g>`;
  svg.firstChild.textContent = document.getElementById("look").textContent;
  return new XMLSerializer().serializeToString(svg);
}

function save(blob, ending) {
  const link = document.createElement("a");
  link.download = (document.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "step") + ending;
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// In the colors of this reader's page, twice as fine as on it where a canvas can be that large.
function savePng() {
  const isDark = matchMedia("(prefers-color-scheme:dark)").matches;
  const svg = picture().replace("(prefers-color-scheme:dark)", isDark ? "all" : "not all");
  const image = new Image();
  image.onload = () => {
    const scale = Math.min(2, 16000 / Math.max(image.width, image.height));
    const canvas = document.createElement("canvas");
    canvas.width = image.width * scale;
    canvas.height = image.height * scale;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => save(blob, ".png"), "image/png");
  };
  image.src = "data:image/svg+xml," + encodeURIComponent(svg);
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
document.getElementById("save-svg").addEventListener(
  "click", () => save(new Blob([picture()], {type: "image/svg+xml"}), ".svg"));
document.getElementById("save-png").addEventListener("click", savePng);
for (const toggle of [messagesToggle, stashToggle]) toggle?.addEventListener("change", redraw);
new ResizeObserver(redraw).observe(chart);
draw();
