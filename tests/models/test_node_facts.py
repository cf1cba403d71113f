import dataclasses
import re

from harness.models.opened.node import NodeFacts, differences, own_code, refuse_differences
from tests.builders.refusals import refusals

FACTS = NodeFacts(
    machine="a",
    boot="00-11",
    process="abc",
    version="1",
    code="c" * 64,
    backend="ort",
    backend_description={"framework": "ONNX Runtime 1", "precision": "fp32"},
    model="digits",
    model_sha256="d" * 64,
    model_bytes=10,
    dataset="digits",
    dataset_description={"digest": "e" * 64},
    total_count=500,
    inputs=[["image", "float32", ["n", 8, 8]]],
    instances=2,
    threads=1,
    max_batch=8,
    rate_per_s=100.0,
    slowest_batch_ns=1000,
    cpus=[0, 1],
    pid=1,
)


def test_facts_come_back_from_json_as_they_were() -> None:
    assert NodeFacts.from_json(FACTS.to_json()) == FACTS
    assert FACTS.specs[0].shape == ("n", 8, 8)


def test_all_differences_are_listed_at_once() -> None:
    other = dataclasses.replace(
        FACTS,
        machine="b",  # the name of the machine does not count as a difference
        rate_per_s=5.0,
        version="2",
        model_sha256="f" * 64,
        dataset_description={"digest": "0" * 64},
        backend_description={"framework": "ONNX Runtime 1", "precision": "int8"},
    )
    assert refusals(refuse_differences, {"a:1": FACTS, "b:1": other}, {}) == [
        "node-differs: b:1: the harness's version is 2, but a:1's is 1",
        "node-differs: b:1: the precision is int8, but a:1's is fp32",
        "node-differs: b:1: the model's file is ffffffffffff…, but a:1's is dddddddddddd…",
        "node-differs: b:1: the data is 000000000000…, but a:1's is eeeeeeeeeeee…",
    ]


def test_every_node_is_compared_with_this_machine() -> None:
    lines = list(differences({"a:1": FACTS, "b:1": FACTS}, own_code()))
    assert len(lines) == 4  # version and code differ for each of the two nodes
    assert all(re.search(r"this run's is ", line) for line in lines)
    same = {"the data": "e" * 64, "the number of samples": 500}
    refuse_differences({"a:1": FACTS, "b:1": FACTS}, same)
