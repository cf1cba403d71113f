"use strict";
// Counts the picked runs, and enables a button for them only while enough runs are picked. Without this script the button is
// always enabled, and the server's reply says what is missing.
const boxes = [...document.querySelectorAll('input[name="run"]')];
const count = document.getElementById("picked");
const buttons = [...document.querySelectorAll("button[data-least]")];

function update() {
  const picked = boxes.filter((box) => box.checked).length;
  if (count) count.textContent = `${picked} picked`;
  for (const button of buttons) {
    button.disabled = picked < Number(button.dataset.least);
    button.title = button.disabled ? `Pick at least ${button.dataset.least} runs` : "";
  }
}

document.addEventListener("change", update);
// A page that the browser takes from its history keeps the boxes that were checked.
window.addEventListener("pageshow", update);
