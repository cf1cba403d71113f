// Places in the palette of lines that many plots and the charts of a live run share, so that a name has one colour on
// all pages.
const PLACES = {
  p50: 0, p90: 1, p99: 2, slowest: 3,
  issue_delay: 0, "issue delay": 0, queue: 1, gather: 4, infer: 2, postprocess: 3, complete: 5,
  answered: 0, requested: 1, "measured process": 0, "all processes": 6, stolen: 1, "taken by the host": 1,
};

/* Maps each name to its place in the palette. Names without a fixed place take the free places in order. */
function places(names) {
  const fixed = names.filter((name) => name in PLACES);
  const taken = new Set(fixed.map((name) => PLACES[name]));
  let next = 0;
  return new Map(names.map((name) => {
    if (name in PLACES) return [name, PLACES[name]];
    while (taken.has(next)) next++;
    return [name, next++];
  }));
}
