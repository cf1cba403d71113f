"""Checks a result tree of MLPerf Endpoints against every rule, and returns all findings together."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.errors import ConfigError
from harness.submit.endpoints.rules import (
    accuracy,
    alike,
    configuration,
    layout,
    point,
    summary,
    system,
)
from harness.submit.endpoints.rules.curve import curve
from harness.submit.endpoints.rules.distributions import distributions
from harness.submit.endpoints.rules.findings import OF_A_REHEARSAL, Finding
from harness.submit.endpoints.rules.repeated_keys import repeated_keys
from harness.submit.endpoints.rules.submission import Curve, curves, submission_roots
from harness.submit.rules.tree.tree import Tree, is_folder, join, shown


class Checked(NamedTuple):
    findings: list[Finding]
    points: list[str]
    """Paths to all points in the tree."""
    roots: list[str]
    """Folders of the submissions, relative to the tree's root."""

    def counted(self, *, rehearsal: bool) -> list[Finding]:
        """Returns the findings that count against the tree. With `rehearsal`, omits the findings that a rehearsal
        cannot avoid.
        """
        return [f for f in self.findings if not (rehearsal and f.rule in OF_A_REHEARSAL)]


def validate(root: Path) -> Checked:
    """Checks the tree. Raises a ConfigError if `root` is not a folder. Reports every fault inside `root` as a finding."""
    if not is_folder(root):
        raise ConfigError(f"{root} is not a folder: pass the root of a submission tree")
    tree = Tree(root)
    findings = list(layout.whole_tree(tree))
    roots = submission_roots(tree)
    points: list[str] = []
    for submission in roots:
        found = list(curves(tree, submission))
        findings += _submission(tree, submission, found)
        points += [one.path for each in found for one in each.points]
    if not points:
        expected = "results/<system>/<model>/r<concurrency>/"
        findings.append(Finding("no-results", ".", "no point", expected))
    findings += layout.unreadable(tree)
    printable = [Finding(f.rule, *map(shown, f[1:])) for f in findings]
    return Checked(list(dict.fromkeys(printable)), list(map(shown, points)), list(roots))


def _submission(tree: Tree, root: str, found: list[Curve]) -> Iterator[Finding]:
    yield from layout.root_folders(tree, root)
    for name in tree.folders(join(root, "results")):
        yield from layout.system_folder(tree, root, name)
    for one in found:
        yield from layout.curve_folder(one)
        for each in one.points:
            yield from layout.point_folder(each)
            yield from repeated_keys(each)
            yield from layout.shared_paths(each, root)
            yield from point.point_file(one, each)
            yield from summary.results(one, each)
            yield from distributions(each)
            yield from configuration.client_config(one, each)
            yield from system.description(each)
        yield from curve(one)
        yield from accuracy.accuracy(one)
        yield from alike.same_lengths(one)
        yield from system.same_system(one)
        yield from system.power(one)
    yield from _one_seed_set(found)
    yield from alike.copied(found)


def _one_seed_set(found: list[Curve]) -> Iterator[Finding]:
    """Checks that all curves in a submission use the same seed set and the same cohort."""
    for key in ("seed_set", "target_cohort"):
        values = {str(one.points[0].yaml.get(key)): one for one in found if one.points}
        if len(values) > 1:
            last = list(values.values())[-1]
            actual = f"{key}: {', '.join(values)}"
            yield Finding("points-differ", last.path, actual, "one value in the submission")
