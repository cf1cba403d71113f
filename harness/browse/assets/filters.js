"use strict";
// Folds the filters on a narrow screen, where they would fill half of it. Without this script they are always open.
const fold = document.querySelector("details.filters");
const isNarrow = window.matchMedia("(max-width: 48rem)");

function follow() {
  fold.open = !isNarrow.matches;
}

isNarrow.addEventListener("change", follow);
follow();
