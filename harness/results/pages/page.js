"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 40rem)");

// Colours that everyone can tell apart, different from those of VALID, INVALID and doubts.
const LIGHT = { text: "#1d2329", grid: "#d9dfe4", bound: "#c0392b",
  marks: {}, lines: ["#0b62a4", "#b5651d", "#00796b", "#7b4fa3", "#8a6d00", "#b03a6b", "#4a5560", "#3d8fc4"] };
const DARK = { text: "#e6eaee", grid: "#343c44", bound: "#ff7b6b",
  // for the colours that a figure names: VALID, INVALID, a warning, and without judgement
  marks: { "#1a7f37": "#57ab5a", "#b8301f": "#ff7b6b", "#9a6700": "#d9c04a", "#57606a": "#a9b4bf" },
  lines: ["#6cb4ee", "#f2a65a", "#5cc9b7", "#c39bdf", "#d9c04a", "#f08ab5", "#a9b4bf", "#a4d0f0"] };
// For heat maps and coloured marks: the lowest cell differs from the page, and the text of a cell has enough contrast at both ends.
const HEAT = { light: [[0, "#d9e7f3"], [1, "#62a8dd"]], dark: [[0, "#26333f"], [1, "#2a6496"]] };

const TIMES = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];
const IN_TIME = /, ms$/;
const SIZES = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
const IN_BYTES = /, bytes$/;

/* Returns a copy in which the colours that a figure names are those of the theme. */
function inTheme(part, theme) {
  return JSON.parse(JSON.stringify(part), (_, value) => theme.marks[value] || value);
}

/* Returns the layout with the axes' titles, in the page's colours. A bound has the colour of the line that it limits, if
 * the figure names the line. */
function themed(given, data, printing) {
  const theme = dark.matches && !printing ? DARK : LIGHT;
  const colours = new Map([...places(keys(data))].map(([name, place]) => [name, theme.lines[place % theme.lines.length]]));
  const layout = inTheme(given, theme);
  const scale = theme === DARK ? HEAT.dark : HEAT.light;
  const made = {
    ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", colorway: theme.lines,
    colorscale: { sequential: scale, sequentialminus: scale, diverging: scale },
    font: { color: theme.text, family: getComputedStyle(document.body).fontFamily, size: narrow.matches ? 11 : 13 },
    margin: { l: 60, r: 20, t: 30, b: 45 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", ...layout.legend },
    hoverlabel: { bgcolor: getComputedStyle(document.body).backgroundColor, font: { color: theme.text } },
    shapes: (layout.shapes || []).map((shape) => {
      const color = (shape.legendgroup && colours.get(shape.legendgroup)) || (shape.name === "bound" ? theme.bound : theme.text);
      return { ...shape, line: { color, ...shape.line }, label: { font: { color }, ...shape.label } };
    }),
  };
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    const given = layout[name];
    made[name] = {
      gridcolor: theme.grid, zerolinecolor: theme.grid, automargin: true, hoverformat: ".4~g", separatethousands: true,
      exponentformat: "none", ticklabelstandoff: name[0] === "y" && given.type === "category" ? 6 : 0,
      ...given,
      title: { text: withUnits(given) ? given.title.replace(IN_TIME, "").replace(IN_BYTES, "") : given.title, standoff: 8 },
    };
  }
  return made;
}

/* Returns the function that writes the marks of an axis in ms or bytes with units; undefined for other axes. */
function withUnits(axis) {
  if (axis.tickvals) return undefined;
  return IN_TIME.test(axis.title || "") ? shownTime : IN_BYTES.test(axis.title || "") ? shownSize : undefined;
}

/* Returns at most `most` values from low to high in steps of 1, 2 and 5; on a logarithmic axis with little room, of 1 and 3,
 * or of 1. */
function readable(low, high, most, isLog) {
  if (isLog && high / low > 12) {
    const inside = (steps) => {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
        for (const digit of steps) found.push(digit * 10 ** power);
      }
      return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    };
    for (const found of [inside([1, 2, 5]), inside([1, 3])]) if (found.length <= most) return found;
    const tens = inside([1]);
    const every = Math.ceil(tens.length / most);
    return tens.filter((_, i) => i % every === 0);
  }
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const steps = [1, 2, 5, 10].map((digit) => digit * power);
  const fits = steps.find((size) => (high - low) / size <= most);
  // An axis needs two marks, even if they are closer than usual.
  const step = fits > 0.9 * (high - low) ? steps[Math.max(0, steps.indexOf(fits) - 1)] : fits;
  const values = [];
  for (let n = Math.ceil(low / step); n * step <= high * (1 + 1e-9); n++) values.push(n * step);
  return values;
}

/* Drops the values of a logarithmic axis that are too close to the one before. scale: pixels per factor of e. */
function spread(values, scale, least) {
  let before = 0;
  return values.filter((value) => {
    if (before && Math.log(value / before) * scale < least * 0.8) return false;
    before = value;
    return true;
  });
}

function shownTime(ms) {
  if (ms === 0) return "0";
  return scaled(ms * 1e6, TIMES);
}

function shownSize(bytes) {
  return bytes === 0 ? "0" : scaled(bytes, SIZES);
}

/* Returns the value in the largest suitable unit. units: names and sizes, the largest first. */
function scaled(value, units) {
  const [unit, size] = units.find(([, least]) => Math.abs(value) >= least * 0.9999) || units[units.length - 1];
  return `${Number((value / size).toPrecision(4))} ${unit}`;
}

/* Returns the number with at most `most` digits, without a power of ten as programs write it (1e-5). */
function shownNumber(value, most = 4) {
  if (Math.abs(value) >= 1e-4 || value === 0) return value.toLocaleString("en", { maximumSignificantDigits: most });
  const [digits, power] = Number(value.toPrecision(most)).toExponential().split("e");
  return `${digits === "1" ? "" : `${digits}·`}10${[...power].map((one) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[one] || "⁻").join("")}`;
}

/* Replaces plotly's marks on logarithmic axes ("2 5 1 2 5") and on time axes with readable ones. */
function mark(place, layout) {
  const update = {};
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    const axis = place._fullLayout[name];
    const shown = withUnits(layout[name]);
    const isLog = axis.type === "log";
    if (layout[name].tickvals || !(isLog || (shown && axis.type === "linear"))) continue;
    const ends = axis.range.map((end) => isLog ? 10 ** end : end);
    const least = name[0] === "x" ? 75 : 32; // pixels between two marks
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    let most = Math.max(2, Math.floor(axis._length / least)), values;
    do { // an axis with a single mark cannot be read
      const all = readable(low, high, most, isLog);
      values = isLog ? spread(all, axis._length / Math.log(high / low), least) : all;
      most += 1;
    } while (values.length < 2 && most < 12);
    if (JSON.stringify(values) === JSON.stringify(axis.tickvals)) continue;
    const texts = values.map((value) => (shown || shownNumber)(value));
    // Values that hardly differ have the same text: only the first one gets it.
    update[`${name}.tickvals`] = values;
    update[`${name}.ticktext`] = texts.map((text, i) => texts.indexOf(text) === i ? text : "");
  }
  if (Object.keys(update).length) Plotly.relayout(place, update);
}

const LABEL = { character: 7, height: 26, mark: 8 }; // of a bound and of a mark, in pixels

/* Extends an axis that ends at the SLO's bound or somewhat below it, so that the bound is visible with its label. */
function roomForBounds(place, layout) {
  const update = {};
  for (const shape of (layout.shapes || []).filter((one) => one.name === "bound")) {
    const isUpright = shape.yref === "paper";
    const name = isUpright ? "xaxis" : `y${(shape.yref || "y").replace("y", "axis")}`;
    const axis = place._fullLayout[name];
    if ((layout[name] || {}).range) continue;
    const value = isUpright ? shape.x0 : shape.y0;
    const at = axis.type === "log" ? Math.log10(value) : value;
    const [low, high] = update[`${name}.range`] || axis.range;
    const span = high - low;
    if (at > high - 0.08 * span && at < high + 0.6 * span) update[`${name}.range`] = [low, at + 0.1 * span];
  }
  return Object.keys(update).length ? Plotly.relayout(place, update) : Promise.resolve();
}

/* Moves the label of a horizontal bound to the place along its line where it covers the fewest points. */
function clearLabels(place, layout) {
  const axis = (name) => place._fullLayout[name.replace(/^[xy]/, "$&axis")];
  const update = {};
  (layout.shapes || []).forEach((shape, i) => {
    if (shape.name !== "bound" || shape.yref === "paper") return;
    const y = axis(shape.yref || "y"), width = LABEL.character * shape.label.text.length;
    const up = y.d2p(shape.y0), most = axis("x")._length - width;
    const points = place._fullData.filter((trace) => (trace.yaxis || "y") === (shape.yref || "y") && trace.x && trace.y)
      .flatMap((trace) => trace.x.map((value, k) => [axis(trace.xaxis || "x").d2p(value), y.d2p(trace.y[k])]))
      .filter(([, at]) => at > up - LABEL.height && at < up + LABEL.mark);
    const covered = (from) => points.filter(([x]) => x > from - LABEL.mark && x < from + width + LABEL.mark).length;
    const places = Object.entries({ end: most, middle: most / 2, start: 0 });
    const [best] = places.reduce((a, b) => (covered(b[1]) < covered(a[1]) ? b : a));
    if (best !== shape.label.textposition) update[`shapes[${i}].label.textposition`] = best;
  });
  return Object.keys(update).length ? Plotly.relayout(place, update) : Promise.resolve();
}

/* Returns a share of slower queries as the percentile that it leaves behind: 0.01 -> p99. */
function shownPercentile(slower) {
  return `p${shownNumber((1 - slower) * 100, 7)}`;
}

/* Returns the function that writes values of an axis with their unit, which follows the last comma of the title. */
function writer(axis) {
  const title = axis.title || "";
  const unit = title.includes(", ") ? title.split(", ").pop() : /[/%]/.test(title) ? title : "";
  const number = title === "percentile" ? shownPercentile : withUnits(axis) || ((value) => `${shownNumber(value)} ${unit}`);
  return (value) => typeof value === "number" ? number(value).trim() : value;
}

/* Returns the trace with a tip for each point or bar that has values with units, unless the figure gives a tip. */
function tipped(trace, layout) {
  if (trace.hovertemplate || !["scatter", "bar"].includes(trace.type || "scatter") || !trace.x || !trace.y) return trace;
  const [x, y] = ["x", "y"].map((name) => writer(layout[`${name}axis${(trace[`${name}axis`] || name).slice(1)}`] || {}));
  const pairs = trace.x.map((value, i) => [x(value), y(trace.y[i] ?? "")]);
  const texts = trace.orientation === "h" ? pairs.map((pair) => pair.reverse()) : pairs;
  // The title of a unified label has the value of x.
  const isUnified = /unified$/.test(layout.hovermode || "");
  return { ...trace, customdata: texts, hovertemplate: isUnified ? "%{customdata[1]}" : "%{customdata[0]}: %{customdata[1]}" };
}

/* Returns the name by which a trace gets its colour. */
function key(trace) {
  return trace.legendgroup || trace.name;
}

function keys(data) {
  return [...new Set(data.map(key))];
}

const HEAT_PLACE = { pixels: 6, edge: 12, narrowFont: 9 };

/* Returns the trace of a heat map with text that fits a narrow screen. */
function fitted(trace) {
  return narrow.matches ? { ...trace, textfont: { ...trace.textfont, size: HEAT_PLACE.narrowFont } } : trace;
}

/* Returns the layout of a heat map, on a narrow screen with small text and names on two lines. */
function fittedLayout(layout, data) {
  const map = data.find((trace) => trace.type === "heatmap");
  if (!map || !narrow.matches) return layout;
  const names = map.y.map((name) => String(name).replace(", ", ",<br>"));
  return {
    ...layout, font: { ...layout.font, size: HEAT_PLACE.narrowFont }, margin: { l: 4, r: 4, t: 4, b: 30 },
    yaxis: { ...layout.yaxis, tickmode: "array", tickvals: map.y, ticktext: names },
  };
}

/* Returns the text in lines of at most `most` characters, unless a word is longer. */
function wrapped(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines.length - 1;
    if (lines[last] && lines[last].length + word.length >= most) lines.push(word);
    else lines[last] += `${lines[last] ? " " : ""}${word}`;
  }
  return lines.join("<br>");
}

const NARROW = { plot: 270, character: 6.5, between: 10, title: 44, name: 18 }; // in pixels and characters

/* Returns the layout for a narrow screen: long titles and names in several lines, and only as many names below an axis as
 * fit. */
function narrowed(layout, data) {
  if (!narrow.matches) return layout;
  const made = { ...layout };
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) {
    const axis = { ...layout[key] };
    if (key[0] === "x" && axis.title && axis.title.text) axis.title = { ...axis.title, text: wrapped(axis.title.text, NARROW.title) };
    const all = axis.categoryarray || [...new Set(data.flatMap((trace) => trace[key[0]] || []))];
    const names = axis.type === "category" ? axis.tickvals || all : [];
    const letters = layout.meta && layout.meta.letters;
    if (names.length && key[0] === "x") {
      const texts = (axis.tickvals && axis.ticktext) || names.map(String);
      const longest = Math.max(...texts.flatMap((text) => text.split("<br>").map((line) => line.length)));
      const every = Math.ceil((names.length * (longest * NARROW.character + NARROW.between)) / NARROW.plot);
      const isKept = (_, i) => (names.length - 1 - i) % every === 0;
      Object.assign(axis, { tickvals: names.filter(isKept), ticktext: texts.filter(isKept) });
    } else if (names.length && letters && Math.max(...names.map((name) => name.length)) > NARROW.name) {
      Object.assign(axis, { tickvals: names, ticktext: names.map((name) => letters[name] || name) });
    }
    made[key] = axis;
  }
  return made;
}

/* Returns the trace with a short name in the legend, so that a legend above a panel fits into one line. */
function named(trace) {
  return narrow.matches && trace.name ? { ...trace, name: trace.name.replace(/^(measured|all) process(es)?$/, "$1") } : trace;
}

/* Returns the least width of a heat map in pixels, at which neither names nor numbers overlap. */
function heatWidth(map) {
  const most = (texts) => Math.max(...texts.map((text) => String(text).length));
  const size = narrow.matches ? HEAT_PLACE.pixels * 0.82 : HEAT_PLACE.pixels * 1.2;
  const names = narrow.matches ? map.y.flatMap((name) => String(name).split(", ")) : map.y;
  const numbers = map.text ? map.text.flat() : map.z.flat().map((value) => (value === null ? "" : String(value)));
  const cell = Math.max(most(numbers), most(map.x)) * size + 4;
  return Math.ceil(most(names) * size + HEAT_PLACE.edge + map.x.length * cell);
}

/* Gives each name one colour in all panels of a plot. Traces of one legend group share its colour. */
function coloured(data, colours, text) {
  const placeOf = places(keys(data));
  return data.map((trace) => {
    const place = placeOf.get(key(trace));
    const color = colours[place % colours.length];
    const dash = place < colours.length ? "solid" : "dash"; // a colour that stands twice
    const errors = Object.fromEntries(["error_x", "error_y"].filter((name) => trace[name])
      .map((name) => [name, { color: text, ...trace[name] }]));
    if (trace.type === "heatmap") {
      return fitted({ ...trace, colorscale: dark.matches && text === DARK.text ? HEAT.dark : HEAT.light, textfont: { color: text } });
    }
    const hoverlabel = { bordercolor: color };
    if (trace.type === "bar") return { ...trace, ...errors, hoverlabel, marker: { color, ...trace.marker } };
    if ((trace.type || "scatter") !== "scatter") return trace;
    return { ...trace, ...errors, hoverlabel, line: { color, dash, ...trace.line }, marker: { color, ...trace.marker } };
  });
}

/* Gives the axes of equal plots one range, so that the comparisons on a page can be compared with each other. */
function equalRanges() {
  const groups = new Map();
  figures.forEach((figure, i) => {
    const name = figure.layout.meta && figure.layout.meta.equal;
    if (name) groups.set(name, [...(groups.get(name) || []), document.getElementById(`plot-${i}`)]);
  });
  for (const places of [...groups.values()].filter((some) => some.length > 1)) {
    const update = {};
    for (const name of Object.keys(places[0].layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      const axes = places.map((place) => place._fullLayout[name]);
      // Names have no range, and a reversed axis has the same marks in all plots.
      if (axes.some((axis) => !axis || axis.type === "category" || axis.range[0] > axis.range[1])) continue;
      update[`${name}.range`] = [Math.min(...axes.map((axis) => axis.range[0])), Math.max(...axes.map((axis) => axis.range[1]))];
    }
    for (const place of places) Plotly.relayout(place, structuredClone(update));
  }
}

/* Returns the addresses to which the points of a trace lead. */
function links(trace) {
  return (trace.meta && trace.meta.links) || [];
}

/* Opens the page of the point under the pointer. The table has the same links for the keyboard. */
function openPoint(event) {
  const [point] = event.points;
  const address = links(point.data)[point.pointIndex];
  if (address) location.assign(address);
}

function draw(printing) {
  const all = figures.map((figure, i) => {
    const place = document.getElementById(`plot-${i}`);
    const map = figure.data.find((trace) => trace.type === "heatmap");
    if (map) place.style.minWidth = `${heatWidth(map)}px`;
    const layout = fittedLayout(themed(figure.layout, figure.data, printing), figure.data);
    const data = inTheme(figure.data, dark.matches && !printing ? DARK : LIGHT)
      .map((trace) => tipped(trace, figure.layout));
    const traces = coloured(data, layout.colorway, layout.font.color).map(named);
    const drawn = Plotly.react(place, traces, narrowed(layout, data), { responsive: true, displayModeBar: false });
    return drawn.then(() => roomForBounds(place, figure.layout)).then(() => clearLabels(place, figure.layout)).then(() => {
      mark(place, figure.layout);
      if (!place.dataset.follows) {
        // New marks may change the margins, and thereby the number of marks: marking again would never end.
        place.on("plotly_relayout", (update) => {
          if (Object.keys(update).some((name) => !/\.tick(vals|text)$/.test(name))) mark(place, figure.layout);
        });
        place.on("plotly_click", openPoint);
      }
      place.dataset.follows = "yes";
    });
  });
  Promise.all(all).then(equalRanges);
}

/* Makes a table of a plot's numbers when it is first opened. */
function tabulate(fold, figure) {
  const cells = (row, kind) => row.map((value) => {
    const cell = document.createElement(kind);
    const plain = Array.isArray(value) ? value.join(" ") : value ?? "";
    cell.textContent = typeof plain === "number" ? shownNumber(plain, 4) : plain;
    if (kind === "th") cell.scope = "col";
    return cell;
  });
  const title = (axis) => (figure.layout[axis] || {}).title || axis[0];
  const x = title("xaxis") === "percentile" ? shownPercentile : (value) => value;
  const rows = figure.data.filter((trace) => trace.x && trace.y && !trace.z).flatMap((trace) =>
    // An entry of the legend without points has the value null.
    trace.x.flatMap((value, i) => value === null ? [] : [[trace.name, x(value), trace.y[i]]]));
  const table = document.createElement("table");
  const first = new Set(rows.map(([name]) => name)).size > 1 ? 0 : 1; // a single line needs no name
  table.createTHead().insertRow().append(...cells(["line", title("xaxis"), title("yaxis")].slice(first), "th"));
  const body = table.createTBody();
  for (const row of rows) body.insertRow().append(...cells(row.slice(first), "td"));
  const scroll = document.createElement("div");
  scroll.className = "scroll data";
  scroll.append(table);
  fold.append(scroll);
  reachable();
}

const names = new Set(); // boxes that have a name, which must be different for each

function headingAbove(box) {
  const heads = [...document.querySelectorAll("h1, h2")];
  const above = heads.filter((head) => head.compareDocumentPosition(box) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
  return above ? above.textContent : document.title;
}

/* Makes scrollable boxes reachable with the keyboard. */
function reachable() {
  for (const box of document.querySelectorAll(".scroll")) {
    if (names.has(box) || (box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight)) continue;
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `table ${names.size + 1}: ${headingAbove(box)}`);
    names.add(box);
  }
}

/* Returns the value by which a cell is sorted: that of its element `data`, or its text. */
function sortValue(cell) {
  const data = cell.querySelector("data");
  return data ? Number(data.value) : cell.textContent;
}

/* Returns the order of two cells. A missing number comes last in both directions. */
function inOrder(one, other, sign) {
  const [a, b] = [one, other].map(sortValue);
  if (typeof a === typeof b) return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
  return typeof a === "number" ? -1 : 1;
}

/* Sorts the rows of a table by the column of a head, and the other way round at the next click. */
function sortBy(head) {
  const table = head.closest("table");
  const descends = head.ariaSort === "ascending";
  for (const other of table.rows[0].cells) other.ariaSort = null;
  head.ariaSort = descends ? "descending" : "ascending";
  const rows = [...table.rows].slice(1);
  rows.sort((a, b) => inOrder(a.cells[head.cellIndex], b.cells[head.cellIndex], descends ? -1 : 1));
  table.tBodies[0].append(...rows);
}

for (const head of document.querySelectorAll("table.sortable th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  button.addEventListener("click", () => sortBy(head));
  head.append(button);
}
for (const fold of document.querySelectorAll("details.numbers")) {
  fold.addEventListener("toggle", () => tabulate(fold, figures[Number(fold.dataset.plot)]), { once: true });
}
reachable();

/* Adds a button to each command that copies it, where the browser allows this. */
for (const command of navigator.clipboard ? document.querySelectorAll("pre.command") : []) {
  const text = command.textContent;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const isCopied = await navigator.clipboard.writeText(text).then(() => true, () => false);
    button.textContent = isCopied ? "Copied" : "Not allowed";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  command.append(button);
}

/* Opens the folded table to which the address or a link leads. */
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target && target.closest("details");
  if (!fold || fold.open) return;
  fold.open = true;
  target.scrollIntoView();
}
unfold();
window.addEventListener("hashchange", unfold);
// A folded table is printed, too.
const folded = () => document.querySelectorAll("details.long:not([open])");
let opened = [];
window.addEventListener("beforeprint", () => { opened = [...folded()]; for (const fold of opened) fold.open = true; });
window.addEventListener("afterprint", () => { for (const fold of opened) fold.open = false; });
if (window.Plotly) {
  // Heights are set here because a page's policy may forbid style attributes.
  for (const place of document.getElementsByClassName("plot")) place.style.height = `${place.dataset.rem}rem`;
  // A heat map scrolls in a box of its own, so that its title stays in view.
  figures.forEach((figure, i) => {
    if (!figure.data.some((trace) => trace.type === "heatmap")) return;
    const place = document.getElementById(`plot-${i}`);
    const box = document.createElement("div");
    box.className = "scroll map";
    place.replaceWith(box);
    box.append(place);
  });
  draw(false);
  reachable();
  dark.addEventListener("change", () => draw(false));
  narrow.addEventListener("change", () => draw(false));
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw(false));
} else {
  for (const place of document.getElementsByClassName("plot")) {
    place.textContent = "Not drawn: plotly's script, which belongs next to this page, was moved or deleted. "
      + "`python -m harness report RUN --standalone` writes a single file with everything in it.";
  }
}
