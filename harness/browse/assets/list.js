"use strict";
// Renews the block of runs in progress, and says how many runs were added. The list itself stays as it is, because the
// reader may have picked runs.
const PERIOD_MS = 3000; // a request costs this machine time, so the list of a hidden page is not renewed
const block = document.getElementById("now");
const news = document.getElementById("news");
const newest = starts(document).reduce((a, b) => (a > b ? a : b), "");

/* Returns the starts of the runs in a list. */
function starts(page) {
  return [...page.querySelectorAll(".list time")].map((time) => time.dateTime);
}

async function renew() {
  if (!document.hidden) {
    const reply = await fetch(location.href);
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    const fresh = page.getElementById("now");
    if (fresh) block.replaceChildren(...fresh.childNodes);
    const added = starts(page).filter((start) => start > newest).length;
    document.getElementById("added").hidden = !added;
    document.getElementById("added-runs").textContent = added === 1 ? "1 new run" : `${added} new runs`;
    news.style.minHeight = `${news.offsetHeight}px`; // the reader may be about to pick a run
  }
  later();
}

/* Renews the page after the period. If the server has stopped, the page stays as it is. */
function later() {
  setTimeout(() => renew().catch(() => {}), PERIOD_MS);
}

later();
