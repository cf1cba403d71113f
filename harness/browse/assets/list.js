"use strict";
// Renews the block of runs in progress. Other parts of the list stay as they are, because the reader may have picked runs.
const PERIOD_MS = 5000;
const block = document.getElementById("now");

async function renew() {
  const reply = await fetch(location.href);
  const fresh = new DOMParser().parseFromString(await reply.text(), "text/html").getElementById("now");
  if (fresh) {
    block.replaceChildren(...fresh.childNodes);
    later();
    return;
  }
  const link = document.createElement("a");
  link.href = location.href;
  link.textContent = "The run has ended: reload the list.";
  block.replaceChildren(link);
}

/* Renews the block after the period. If the server has stopped, the block stays as it is. */
function later() {
  setTimeout(() => renew().catch(() => {}), PERIOD_MS);
}

later();
