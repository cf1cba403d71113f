// Places in the palette of lines that many plots and the charts of a live run share, so that a name has one colour on
// all pages.
const PLACES = {
  p50: 0, p90: 1, p99: 2, slowest: 3,
  issue_delay: 0, "issue delay": 0, queue: 1, gather: 4, infer: 2, postprocess: 3, complete: 5,
  ort: 0, openvino: 1, tensorflow: 2, torch: 3, litert: 4, tract: 5, ncnn: 6, mnn: 7,
  "read from the disk": 0, deserialise: 1, "optimise graph, prepack weights": 2, "rest of the load": 3,
  "prepare the input": 4, "first run": 5, "start of the process": 6, "import of the framework": 7, "after the import": 2,
  fp32: 0, bf16: 1, int8: 2, fp16: 3,
  answered: 0, requested: 1, "measured process": 0, "all processes": 6, "other programs": 6, stolen: 1, "taken by the host": 1,
};

/* Returns the fixed place of a name; undefined for other names. The sides of a comparison ("B: run") have one colour in
 * all comparisons of a page. */
function fixedPlace(name) {
  return /^[A-H](: |$)/.test(name) ? name.charCodeAt(0) - "A".charCodeAt(0) : PLACES[name];
}

/* Maps each name to its place in the palette. Names without a fixed place take the free places in order. */
function places(names) {
  const taken = new Set(names.map(fixedPlace).filter((place) => place !== undefined));
  let next = 0;
  return new Map(names.map((name) => {
    const fixed = fixedPlace(name);
    if (fixed !== undefined) return [name, fixed];
    while (taken.has(next)) next++;
    return [name, next++];
  }));
}
