"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 40rem)");

function themed(layout, printing) {
  const isDark = dark.matches && !printing;
  const text = isDark ? "#e6eaee" : "#1d2329";
  const grid = isDark ? "#343c44" : "#d9dfe4";
  const axis = (given) => ({
    gridcolor: grid, zerolinecolor: grid, automargin: true, ...given,
    title: { text: given.title, standoff: 8 },
  });
  const made = {
    ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: text, size: narrow.matches ? 10 : 12 },
    margin: { l: 55, r: 20, t: 30, b: 45 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
  };
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis\d*$/.test(name)) made[name] = axis(layout[name]);
  }
  return made;
}

function draw(printing) {
  figures.forEach((figure, i) => {
    const place = document.getElementById(`plot-${i}`);
    Plotly.react(place, figure.data, themed(figure.layout, printing), { responsive: true, displayModeBar: false });
  });
}

if (window.Plotly) {
  // In the script: a page whose policy forbids style attributes has its heights, too.
  for (const place of document.getElementsByClassName("plot")) place.style.height = `${place.dataset.rem}rem`;
  draw(false);
  dark.addEventListener("change", () => draw(false));
  narrow.addEventListener("change", () => draw(false));
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw(false));
} else {
  for (const place of document.getElementsByClassName("plot")) {
    place.textContent = "Not drawn: plotly's script is not where it was beside this page. "
      + "`python -m harness report RUN --standalone` makes one file that needs no other.";
  }
}
