"""Compares the harness's validator and audits with MLCommons' checkers and scripts, fault by fault.

    python benchmarks/official_check.py CHECKOUT            checks every mutation and a packed tree with power
    python benchmarks/official_check.py CHECKOUT --record   writes tests/golden/audits.json again

CHECKOUT: a checkout of mlcommons/inference. The exit status is 1 if the harness accepts a submission that MLCommons'
checkers refuse, or judges an audit differently.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from harness.submit.pack.pack import pack  # noqa: E402
from harness.submit.plan.matrix import plan  # noqa: E402
from harness.submit.rules.official import Outcome, run_checkers, verify_audit  # noqa: E402
from harness.submit.rules.tree.verify import PASS, verify  # noqa: E402
from harness.submit.rules.validate import validate  # noqa: E402
from tests.builders.submission import audit_cases  # noqa: E402
from tests.builders.submission.mutations import MUTATIONS  # noqa: E402
from tests.builders.submission.power import POWERED, TOLD, make_power_runs  # noqa: E402
from tests.builders.submission.trees import ROUND, build, copy  # noqa: E402

RECORDED = ROOT / "tests" / "golden" / "audits.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument(
        "--only", help="check only mutations with this text in their names, and no audits"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        differ = 0
        if options.only is None:
            differ = audits(options.checkout, Path(folder) / "audits", record=options.record)
        if options.record:
            return 0
        if options.only is None:
            differ += powered(options.checkout, Path(folder) / "power")
        weaker = trees(options.checkout, Path(folder), options.only or "")
    return 1 if differ or weaker else 0


def audits(checkout: Path, folder: Path, *, record: bool) -> int:
    """Returns the number of cases in which the harness's verification and MLCommons' verification differ."""
    verdicts = {}
    differ = 0
    for number, (name, case) in enumerate(audit_cases.CASES.items()):
        runs = audit_cases.build(case, folder / str(number))
        theirs = verify_audit(checkout, case.audit, *runs, "int64")
        ours = verify(case.audit, *runs, "int64")
        verdicts[name] = {file: PASS in text for file, text in sorted(theirs.texts.items())}
        if verdicts[name] != {file: PASS in text for file, text in ours.texts.items()}:
            differ += 1
            print(f"differ    {name}: theirs {theirs.texts}, ours {ours.texts}")
    if record:
        RECORDED.write_text(json.dumps(verdicts, indent=1) + "\n")
    print(f"audits: {len(verdicts)} cases, {differ} judged differently")
    return differ


def powered(checkout: Path, folder: Path) -> int:
    """Packs runs with artificial PTDaemon sessions, and returns the number of findings and of checkers that refuse the
    tree.
    """
    make_power_runs(POWERED, folder)
    found = pack(POWERED, plan(POWERED, folder), TOLD, folder / "tree", checkout)
    findings = validate(found.tree, ROUND, raw=found.raw).findings
    outcomes = run_checkers(checkout, found.tree, ROUND.name)
    for outcome in outcomes:
        print(f"power     {outcome.checker}: {outcome.crash or outcome.summary}")
    print(f"power     ours: {len(findings)} findings")
    return len(findings) + sum(not outcome.passed for outcome in outcomes)


def trees(checkout: Path, folder: Path, only: str) -> int:
    """Returns the number of mutations that MLCommons' checkers find but the harness's checker does not."""
    raw = folder / "raw"
    raw.mkdir()
    golden = build(folder / "golden", raw)
    counts: Counter[str] = Counter()
    for outcome in run_checkers(checkout, golden, ROUND.name):
        print(f"golden    {outcome.checker}: {outcome.crash or outcome.summary}")
    for number, (name, (_, mutate)) in enumerate(MUTATIONS.items()):
        if only not in name:
            continue
        tree = copy(golden, folder / str(number))
        mutate(tree)
        rules = sorted({f.rule for f in validate(tree, ROUND).findings})
        outcomes = run_checkers(checkout, tree, ROUND.name)
        passed = all(outcome.passed for outcome in outcomes)
        word = "agree" if passed == (not rules) else "stricter" if passed else "WEAKER"
        counts[word] += 1
        counts.update(f"{o.checker} {_word(o)}" for o in outcomes)
        shutil.rmtree(tree)
        theirs = ", ".join(f"{o.checker} {_word(o)}" for o in outcomes)
        print(f"{word:<10}{name:<32}{theirs:<32}ours: {', '.join(rules) or 'nothing'}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return counts["WEAKER"]


def _word(outcome: Outcome) -> str:
    return "crashes" if outcome.crash else "passes" if outcome.passed else "fails"


if __name__ == "__main__":
    sys.exit(main())
