"""Collects facts about every node in a Ray cluster, including busy nodes."""

from collections.abc import Mapping
from typing import Any

from harness.cluster.ray.client import answer_of, connected, every_node
from harness.errors import HarnessError, one_line

ANSWER_LIMIT_S = 120.0


def facts(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `ray` (Ray's version) and `nodes` for {"nodes": "ray://HOST:PORT"}.

    The caller runs this function in a separate process. If a node does not respond, its entry consists of its `address`
    and an `error`.
    """
    with connected(request["nodes"]) as ray, every_node(ray) as hosts:
        asked = {host.name: host.actor.facts.remote("{}") for host in hosts}
        done, _ = ray.wait([*asked.values()], num_returns=len(asked), timeout=ANSWER_LIMIT_S)
        return {"ray": ray.__version__, "nodes": [_facts(ray, *one, done) for one in asked.items()]}


def _facts(ray: Any, name: str, asked: Any, done: list[Any]) -> Mapping[str, Any]:
    if asked not in done:
        return {"address": name, "error": f"it did not answer in {ANSWER_LIMIT_S:g} s"}
    try:
        return answer_of(ray, asked, name)
    except HarnessError as e:
        return {"address": name, "error": one_line(e)}
