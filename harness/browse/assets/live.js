"use strict";
// The server renders the panel; this puts each new one in its place, and ends with the run.
const panel = document.getElementById("panel");
const status = document.getElementById("status");
const trace = document.getElementById("trace");
const rates = [];
const events = new EventSource(panel.dataset.events);

function draw() {
  const most = Math.max(...rates, 1e-9);
  const points = rates.map((rate, i) => `${(i / Math.max(rates.length - 1, 1)) * 600} ${116 - (rate / most) * 110}`);
  let path = trace.firstElementChild;
  if (!path) path = trace.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  path.setAttribute("d", `M${points.join("L")}`);
}

function show(event) {
  panel.innerHTML = event.data;
  const rate = panel.querySelector("[data-rate]");
  if (rate) {
    rates.push(Number(rate.dataset.rate));
    if (rates.length > 300) rates.shift();
    draw();
  }
}

events.addEventListener("state", show);
events.addEventListener("end", (event) => {
  events.close();
  show(event);
  status.textContent = "Ended";
});
events.addEventListener("error", () => {
  if (events.readyState === EventSource.CLOSED) status.textContent = "Not in progress";
});
