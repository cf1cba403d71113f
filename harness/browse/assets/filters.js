"use strict";
// Submits the form as soon as the pointer changes a list or the checkbox. With the keyboard, the reader may pass several
// entries of a list, so the button submits the form, as it does without this script.
let isPointed = false;
document.addEventListener("pointerdown", () => { isPointed = true; }, true);
document.addEventListener("keydown", () => { isPointed = false; }, true);
for (const one of document.querySelectorAll('.filters select, input[name="inside"]'))
  one.addEventListener("change", () => {
    if (isPointed) one.form.requestSubmit(one.form.querySelector('.fields button[type="submit"]'));
  });

// Folds the filters on a narrow screen, where they would fill half of it. Without this script they are always open.
const fold = document.querySelector("details.filters");
const isNarrow = window.matchMedia("(max-width: 48rem)");

function follow() {
  fold.open = !isNarrow.matches;
}

isNarrow.addEventListener("change", follow);
follow();
