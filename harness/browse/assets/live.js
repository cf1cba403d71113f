"use strict";
// The server sends the panel as HTML and the points of the charts as JSON, once per second. At the end, the page
// of the finished run is loaded.
const panel = document.getElementById("panel");
const status = document.getElementById("status");
const title = document.querySelector("h1").textContent;
const points = [];
const charts = [];
let pointed = null; // time at the pointer, in seconds
let hasEnded = false;
const isSearch = document.querySelector(".search") !== null;
let isWindow = false; // whether earlier runs of a search are not shown
const MOST_POINTS = 3600;
const MOST_RUNS = 4; // of a search (live/watching.py): the rates of its first runs would flatten later curves
const NEAR = 0.9; // from this share of its bound on, a value almost reaches the bound (live/tiles.py)
const MOST_EMPTY = 5; // an empty chart disappears if none of so many points has a value for it
const LEAST_LINE = 3; // a line through fewer points would show a course that nobody has seen
const END_MS = 5000; // time to read how the run ended
const APART = { across: 56, up: 24 }; // least distance between two marks of a logarithmic axis
const AXIS = 18; // height of the title of an axis
const SIDES = { // of the number of a run: distances from its mark, and the end of the text that is near the mark
  "bottom center": [0, 18, ""], "middle left": [-9, 4, "left"], "middle right": [9, 4, "right"], "top center": [0, -8, ""],
};
const HEIGHT = 200, TRIED_HEIGHT = 320, LEFT = 64, RIGHT = 12, TOP = 10, BOTTOM = 24;
const SVG = "http://www.w3.org/2000/svg";

function digits(value) {
  if (value === 0) return "0";
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

function shown(value, unit) {
  if (value === undefined || value === null) return "-";
  if (unit === "cores") return String(Number(value.toFixed(2)));
  if (unit !== "s" || value === 0) return digits(value);
  if (value >= 1) return `${digits(value)} s`;
  return value >= 1e-3 ? `${digits(value * 1e3)} ms` : `${digits(value * 1e6)} µs`;
}

function shownTime(seconds) {
  if (seconds < 120) return `${digits(seconds)} s`;
  return `${Math.floor(seconds / 60)}:${String(Math.round(seconds % 60)).padStart(2, "0")} min`;
}

// Round steps of 1, 2 or 5, at most `most` of them.
function ticks(low, high, most) {
  const rough = Math.max((high - low) / most, 1e-12);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found;
}

// Steps of 1, 2 and 5, or of 1 on a long axis.
function logTicks(low, high, steps = high / low > 100 ? [1] : [1, 2, 5]) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    for (const step of steps) found.push(step * 10 ** power);
  return found.filter((value) => value >= low && value <= high);
}

function add(parent, name, attributes, text) {
  const made = parent.appendChild(document.createElementNS(SVG, name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/* Returns the class of the colour of a value: "reason" above its bound, "doubt" if it almost reaches the bound. */
function judged(value, bound) {
  return value > bound ? "reason" : value >= NEAR * bound ? "doubt" : "";
}

/* Shows that the page is not renewed any more. */
function say(text) {
  status.className = "quiet";
  status.textContent = text;
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.name = figure.dataset.name;
    this.unit = figure.dataset.unit;
    this.stacked = "stacked" in figure.dataset;
    this.log = "log" in figure.dataset;
    this.svg = figure.querySelector("svg");
    this.legend = figure.querySelector(".legend");
    this.series = []; // names in order of arrival, which gives the colour
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { pointed = null; drawAll(); });
  }

  values(point) { return point.charts[this.name] || {}; }

  take(point) {
    for (const name of Object.keys(this.values(point))) {
      // A p99 needs more answers than a p50, but has its place beside it.
      const names = name.endsWith("p50") ? ["p50", "p90", "p99"].map((one) => name.replace("p50", one)) : [name];
      for (const one of names) if (!this.series.includes(one)) this.series.push(one);
    }
  }

  point(event) {
    if (!points.length) return;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / Math.max(box.width - LEFT - RIGHT, 1);
    pointed = first() + Math.min(Math.max(share, 0), 1) * (last() - first());
    drawAll();
  }

  draw() {
    // A single point would be an empty chart.
    if (points.filter((one) => Object.keys(this.values(one)).length).length < 2) {
      // A chart of a search keeps its place once it has had values, because short runs may lack them.
      this.figure.hidden ||= hasEnded || (points.length > MOST_EMPTY && !(isSearch && this.series.length));
      this.svg.replaceChildren();
      this.legend.replaceChildren();
      this.svg.removeAttribute("viewBox");
      add(this.svg, "text", { x: "50%", y: HEIGHT / 2, class: "tick" }, isSearch && this.series.length ? "no data in these runs" : "no data yet");
      return;
    }
    this.figure.hidden = false;
    const hasFinal = points.some((one) => one.is_final);
    waiting.hidden = !isWindow && !hasFinal;
    waiting.textContent = [
      isWindow && `The charts show the last ${MOST_RUNS} runs.`,
      hasFinal && "A dot shows the final numbers of a run that ended before it could be watched.",
    ].filter(Boolean).join(" ");
    const width = Math.max(this.svg.clientWidth, 240);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren();
    const drawn = thinned(width);
    const limits = (this.latest().bounds || {})[this.name] || {};
    const bounds = Object.entries(limits);
    const most = this.most(drawn, bounds);
    const x = (t) => LEFT + ((t - first()) / Math.max(last() - first(), 1e-9)) * (width - LEFT - RIGHT);
    const least = this.log ? this.least(drawn, bounds) : 0;
    const share = (v) => (this.log ? Math.log(Math.max(v, least) / least) / Math.log(most / least) : v / most);
    const y = (v) => HEIGHT - BOTTOM - share(v) * (HEIGHT - TOP - BOTTOM);
    for (const value of this.log ? logTicks(least, most) : ticks(0, most, 4)) {
      add(this.svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "grid" });
      add(this.svg, "text", { x: LEFT - 6, y: y(value) + 4, class: "tick left" }, shown(value, this.unit));
    }
    for (const t of ticks(first(), last(), Math.max(2, Math.floor(width / 110))))
      add(this.svg, "text", { x: x(t), y: HEIGHT - 6, class: "tick" }, shownTime(t));
    const marked = points.filter((one) => one.mark);
    if (marked.length > 1) for (const one of marked) {
      if (one !== points[0])
        add(this.svg, "line", { x1: x(one.t), x2: x(one.t), y1: TOP, y2: HEIGHT - BOTTOM, class: "mark" });
      const isLast = x(one.t) > width - RIGHT - 60; // no room at the right
      const at = isLast ? { x: x(one.t) - 3, class: "tick left" } : { x: x(one.t) + 3, class: "tick right" };
      add(this.svg, "text", { ...at, y: TOP + 9 }, markName(one.mark, marked));
    }
    if (this.stacked) this.areas(drawn, x, y);
    else for (const [name, place] of places(this.series)) this.line(drawn, name, place, x, y);
    for (const [, value] of bounds) if (value <= most) {
      add(this.svg, "rect", { x: LEFT, y: TOP, width: width - RIGHT - LEFT, height: y(value) - TOP, class: "late" });
      add(this.svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "bound" });
    }
    if (pointed !== null) {
      const at = nearest(pointed).t;
      add(this.svg, "line", { x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM, class: "pointer" });
    }
    this.name_series(limits, most);
  }

  most(drawn, bounds) {
    const tops = drawn.map((one) => {
      const values = Object.values(this.values(one));
      return this.stacked ? values.reduce((a, b) => a + b, 0) : Math.max(0, ...values);
    });
    const top = Math.max(...tops, this.unit === "s" ? 1e-9 : 1);
    const near = bounds.map(([, value]) => value).filter((value) => value <= (this.log ? 100 : 3) * top);
    return Math.max(top, ...near) * (this.log ? 1.3 : 1.06);
  }

  // The lower end of a logarithmic axis, at least a factor of 10 below its upper end.
  least(drawn, bounds) {
    const values = drawn.flatMap((one) => Object.values(this.values(one))).filter((value) => value > 0);
    const most = this.most(drawn, bounds);
    return Math.min(most / 10, ...values.map((value) => value / 1.3));
  }

  line(drawn, name, place, x, y) {
    for (const part of this.parts(drawn, (one) => this.values(one)[name] !== undefined)) {
      const at = part.map((one) => [x(one.t).toFixed(1), y(this.values(one)[name]).toFixed(1)]);
      const kind = `s${place % 8}`;
      if (at.length < LEAST_LINE) for (const [cx, cy] of at) add(this.svg, "circle", { cx, cy, r: 2.5, class: `dot ${kind}` });
      else add(this.svg, "path", { d: `M${at.map((one) => one.join(" ")).join("L")}`, class: `line ${kind}` });
    }
  }

  areas(drawn, x, y) {
    for (const part of this.parts(drawn, (one) => Object.keys(this.values(one)).length > 0)) {
      const before = drawn[drawn.indexOf(part[0]) - 1];
      // A mean covers the time since the previous point.
      if (before && !part[0].mark) part.unshift({ ...part[0], t: before.t });
      let below = part.map(() => 0);
      for (const [name, place] of places(this.series)) {
        const above = part.map((one, k) => below[k] + (this.values(one)[name] || 0));
        const at = (heights) => widened(part.map((one, k) => [x(one.t), y(heights[k]).toFixed(1)]));
        add(this.svg, "path", { d: `M${[...at(above), ...at(below).reverse()].join("L")}Z`, class: `area s${place % 8}` });
        below = above;
      }
    }
  }

  // The points with values, split at points without values or with a mark.
  parts(drawn, hasValues) {
    const found = [[]];
    for (const one of drawn) {
      if (!hasValues(one) || one.mark) found.push([]);
      if (hasValues(one)) found[found.length - 1].push(one);
    }
    return found.filter((part) => part.length);
  }

  // The last point with values among the last three; after the end, among all.
  latest() {
    const recent = hasEnded ? points : points.slice(-3);
    return recent.findLast((one) => Object.keys(this.values(one)).length) || points[points.length - 1];
  }

  // limits: bounds by name. most: the upper end of the axis.
  name_series(limits, most) {
    const at = pointed === null ? this.latest() : nearest(pointed);
    // The last second of a run that has ended would contradict the run's final numbers.
    const isPast = pointed === null && (hasEnded || panel.querySelector(".now.past") !== null);
    const rows = [...places(this.series)].map(([name, place]) => {
      const row = document.createElement("li");
      const kind = judged(this.values(at)[name], limits[name]);
      const swatch = row.appendChild(document.createElement("span"));
      swatch.className = `swatch s${place % 8}`;
      row.append(`${this.name === "stages" ? name.replaceAll("_", " ") : name} `);
      const number = row.appendChild(document.createElement("b"));
      number.textContent = isPast ? "" : shown(this.values(at)[name], this.unit);
      number.className = kind;
      return row;
    });
    for (const [name, value] of Object.entries(limits)) {
      const row = document.createElement("li");
      row.appendChild(document.createElement("span")).className = "swatch bound-swatch";
      row.append(`${name} allowed `);
      row.appendChild(document.createElement("b")).textContent = shown(value, this.unit);
      if (value > most) row.append(" (above the chart)");
      if (!points.some((one) => name in this.values(one))) row.append(` (too few queries for ${name} so far)`);
      rows.push(row);
    }
    if (pointed !== null) {
      const row = document.createElement("li");
      row.textContent = `at ${shownTime(at.t)}`;
      rows.push(row);
    }
    this.legend.replaceChildren(...rows);
  }
}

/* Returns an axis for the values: the place of a value between two ends in pixels, and the axis's marks. */
function axisOf(values, isLog, from, to) {
  const low = isLog ? Math.min(...values) / 1.2 : 0;
  const high = Math.max(...values) * (isLog ? 1.2 : 1.06);
  const share = (value) => (isLog ? Math.log(value / low) / Math.log(high / low) : value / high);
  const at = (value) => from + share(value) * (to - from);
  const least = from > to ? APART.up : APART.across;
  const isApart = (value, i, all) => i === 0 || Math.abs(at(value) - at(all[i - 1])) >= least;
  const most = Math.max(3, Math.floor(Math.abs(to - from) / 90));
  const plain = ticks(low, high, most).filter((value) => value >= low);
  const choices = isLog ? [[1, 2, 5], [1, 3], [1]].map((steps) => logTicks(low, high, steps)) : [];
  const marks = choices.find((some) => some.length > 2 && some.every(isApart)) || plain.filter((value, i, all) => !isLog || isApart(value, i, all));
  return { at, marks };
}

/* Draws the loads that a search has tried so far. The server sends them after each run. */
function drawTried() {
  const figure = document.getElementById("tried");
  if (!figure) return;
  const { titles, marks, log, bound, peak, traces } = JSON.parse(figure.dataset.plot);
  const svg = figure.querySelector("svg");
  const width = Math.max(svg.clientWidth, 240);
  svg.setAttribute("viewBox", `0 0 ${width} ${TRIED_HEIGHT}`);
  svg.replaceChildren();
  const points = traces.flatMap((trace) => trace.points);
  const bottom = TRIED_HEIGHT - BOTTOM - AXIS; // below it: numbers, then the axis's title
  const x = axisOf(points.map(([load]) => load), log.includes("x"), LEFT, width - RIGHT);
  const tops = points.map(([, value]) => value).filter((value) => value > 0 || !log.includes("y"));
  const y = axisOf([...tops, bound ?? tops[0]], log.includes("y"), bottom, TOP);
  const isTime = titles.y.endsWith(", ms");
  for (const value of y.marks) {
    add(svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y.at(value), y2: y.at(value), class: "grid" });
    add(svg, "text", { x: LEFT - 6, y: y.at(value) + 4, class: "tick left" }, isTime ? shown(value / 1e3, "s") : digits(value));
  }
  for (const value of marks || x.marks) {
    add(svg, "line", { x1: x.at(value), x2: x.at(value), y1: TOP, y2: bottom, class: "grid" });
    const isLast = x.at(value) > width - RIGHT - 24; // its text would be cut off
    add(svg, "text", { x: isLast ? width - 2 : x.at(value), y: TRIED_HEIGHT - 6 - AXIS, class: isLast ? "tick left" : "tick" }, digits(value));
  }
  add(svg, "text", { x: (LEFT + width - RIGHT) / 2, y: TRIED_HEIGHT - 4, class: "tick" }, titles.x);
  if (bound !== null) {
    add(svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y.at(bound), y2: y.at(bound), class: "bound" });
    const allowed = `${isTime ? shown(bound / 1e3, "s") : `${digits(bound)} %`} allowed`;
    add(svg, "text", { x: width - RIGHT, y: y.at(bound) - 5, class: "tick left allowed" }, allowed);
  }
  if (peak !== null) {
    add(svg, "line", { x1: x.at(peak), x2: x.at(peak), y1: TOP, y2: bottom, class: "peak" });
    add(svg, "text", { x: x.at(peak) - 4, y: TOP + 10, class: "tick left" }, "peak");
  }
  const place = places(traces.map((trace) => trace.name));
  const rows = traces.map((trace) => {
    const colour = triedColour(trace, place);
    const at = trace.points.map(([load, value]) => [x.at(load), y.at(value)]);
    if (!trace.mark) add(svg, "path", { d: `M${at.join("L")}`, class: `line ${colour}` });
    trace.points.forEach(([, , number, side], i) => {
      const [across, up] = at[i];
      if (!trace.mark) add(svg, "circle", { cx: across, cy: up, r: 2.5, class: `dot ${colour}` });
      else addSymbol(svg, trace.mark, across, up, colour);
      const [right, down, kind] = SIDES[side] || SIDES[up > TOP + 20 ? "top center" : "bottom center"];
      if (number) add(svg, "text", { x: across + right, y: up + down, class: `tick ${kind}` }, number);
    });
    const row = document.createElement("li");
    if (trace.mark) addSymbol(add(row, "svg", { viewBox: "0 0 16 16" }), trace.mark, 8, 8, colour);
    else row.appendChild(document.createElement("span")).className = `swatch ${colour}`;
    row.append(` ${trace.name}`);
    return row;
  });
  figure.querySelector(".legend").replaceChildren(...rows);
  figure.querySelector(".axis").textContent = titles.y.replace(/, ms$/, "");
}

/* Returns the class of a trace's colour: that of its name, or of the outcome that a symbol stands for. */
function triedColour(trace, place) {
  if (!trace.mark) return `s${place.get(trace.name) % 8}`;
  return { disc: "good", circle: "good", cross: "reason" }[trace.mark] || "quiet";
}

/* Symbols are drawn, because fonts may lack them. */
function addSymbol(parent, mark, x, y, colour) {
  const kind = `symbol ${mark} ${colour}`;
  if (mark === "disc" || mark === "circle") add(parent, "circle", { cx: x, cy: y, r: 5, class: kind });
  else add(parent, "path", { d: `M${x} ${y}${mark === "cross" ? "m-5-5l10 10m0-10l-10 10" : "m0-6l6 6l-6 6l-6-6Z"}`, class: kind });
}

/* Returns the places of an area's edge as texts; a single place becomes a short edge, which can be seen. */
function widened(places) {
  const [[x, y]] = places;
  const both = places.length > 1 ? places : [[x - 2, y], [x + 2, y]];
  return both.map(([across, up]) => `${across.toFixed(1)} ${up}`);
}

/* Returns a short name: of a phase if all marks are of one run, else the number with which the run's name begins, or what
 * differs in its name. */
function markName(mark, marked) {
  const [run, phase] = mark.split(" ");
  if (phase && marked.every((one) => one.mark.startsWith(`${run} `))) return phase;
  const number = /^\d+/.exec(run);
  if (number) return number[0];
  // Of names such as digits-ort-fp32-b1 and digits-openvino-fp32-b1, the parts that differ distinguish the runs.
  const names = marked.map((one) => one.mark.split(" ")[0].split("-"));
  const parts = run.split("-").filter((part, i) => names.some((name) => name[i] !== part));
  return parts.join(" ").slice(0, 16) || run.slice(-10);
}

/* Removes the points of a search's earlier runs. */
function forgetRuns() {
  const runs = new Map(); // maps a run to its first point
  points.forEach((one, i) => {
    const run = one.mark && one.mark.split(" ")[0];
    if (run && !runs.has(run)) runs.set(run, i);
  });
  if (runs.size <= MOST_RUNS) return;
  points.splice(0, [...runs.values()].at(-MOST_RUNS));
  isWindow = true;
}

const first = () => points[0].t;
const last = () => Math.max(points[points.length - 1].t, first() + 1);
const nearest = (t) => points.reduce((a, b) => (Math.abs(b.t - t) < Math.abs(a.t - t) ? b : a));

// As many points as the width can show. Of several points, it keeps the one with a mark, else the last.
function thinned(width) {
  const step = Math.ceil(points.length / (width / 2));
  if (step <= 1) return points;
  const found = [];
  for (let i = 0; i < points.length; i += step) {
    const some = points.slice(i, i + step);
    found.push(some.find((one) => one.mark) || some[some.length - 1]);
  }
  return found;
}

function drawAll() {
  for (const chart of charts) chart.draw();
}

for (const figure of document.querySelectorAll("#charts .chart")) charts.push(new Chart(figure));
const waiting = document.getElementById("waiting");
new ResizeObserver(() => { drawAll(); drawTried(); }).observe(document.getElementById("charts"));

const events = new EventSource(panel.dataset.events);
let isOpen = false; // whether the reader has opened the stages; each new panel would close them

function show(event) {
  isOpen = panel.querySelector("details")?.open ?? isOpen;
  panel.innerHTML = event.data;
  const share = panel.querySelector("progress.whole"); // of the page's run or search, not of a run in the search
  document.title = [share && `${Math.round(100 * share.value)} %`, title].filter(Boolean).join(" · ");
  const details = panel.querySelector("details");
  if (details) details.open = isOpen;
  drawAll();
}

events.addEventListener("state", show);
// A page that was opened before the run or study wrote its first file does not know its title.
events.addEventListener("name", (event) => { if (event.data !== panel.dataset.name) location.reload(); });
events.addEventListener("done", (event) => {
  document.getElementById("done").innerHTML = event.data;
  drawTried();
});
events.addEventListener("points", (event) => {
  for (const one of JSON.parse(event.data)) {
    points.push(one);
    for (const chart of charts) chart.take(one);
  }
  if (points.length > MOST_POINTS) points.splice(0, points.length - MOST_POINTS);
  forgetRuns(); // the next panel draws the points
});
events.addEventListener("end", (event) => {
  events.close();
  hasEnded = true;
  waiting.hidden = true;
  show(event);
  const end = document.getElementById("end");
  if (!end) { say("Ended"); return; }
  // Screen readers announce what is added to the status.
  const opening = document.createElement("span");
  const stay = document.createElement("button");
  stay.type = "button";
  stay.textContent = "Stay here";
  const left = document.createElement("span");
  left.setAttribute("aria-hidden", "true"); // a status is read again after each change
  const ends = performance.now() + END_MS;
  const count = () => { left.textContent = ` (opens in ${Math.max(1, Math.ceil((ends - performance.now()) / 1000))} s) `; };
  count();
  const counting = setInterval(count, 250);
  opening.append(left, stay);
  status.className = "ended";
  status.replaceChildren(...end.childNodes, opening);
  end.remove();
  const timer = setTimeout(() => location.replace(document.getElementById("next").href), END_MS);
  // A reader who acts is still reading.
  for (const act of ["pointerdown", "keydown", "wheel"])
    document.addEventListener(act, () => { clearTimeout(timer); clearInterval(counting); opening.remove(); }, { once: true });
});
events.addEventListener("open", () => {
  points.length = 0; // after a lost connection the server sends every point again
});
events.addEventListener("error", () => {
  if (events.readyState === EventSource.CLOSED) say("Not in progress");
});
