"""The Network division: servers on different machines, refusals, packed files and rehearsals."""

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from harness.cli.main import main
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.loadgen.logs import DETAIL
from harness.submit.pack.describe import NETWORK_FACTS, read_answers_file
from harness.submit.pack.pack import pack
from harness.submit.plan import network
from harness.submit.plan.matrix import notes, plan, problems
from harness.submit.plan.request import Request
from harness.submit.plan.request_file import write_request
from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.rounds import load_round
from harness.submit.rules.validate import validate
from tests.builders.refusals import refusal
from tests.builders.serving import serving
from tests.builders.submission.mutations import rename
from tests.builders.submission.trees import CLOSED, JSON, ROUND, log
from tests.faults.command import run_here
from tests.stand_ins.fake_submission_runs import ANSWERS, make_runs

ELSEWHERE = "http://10.0.0.2:8000"
REQUEST = Request(
    division="network",
    submitter="LabOrg",
    system="box",
    category="datacenter",
    benchmark="3d-unet-99",
    options={"model": "digits", "backend": "kserve", "url": [ELSEWHERE]},
)
OPEN = replace(
    REQUEST,
    division="open",
    benchmark="resnet",
    category="datacenter,edge",
    scenarios=("Offline",),
    options={**REQUEST.options, "qdl": True},
)


def client(sut_name: str = "Network SUT: node-1", *, local: bool = False) -> dict[str, Any]:
    peer = {"url": ELSEWHERE, "address": "10.0.0.2", "local": local, "name": "node-1"}
    return {"peers": [{**peer, "round_trip_ns": 90_000}], "connections": 64, "sut_name": sut_name}


def test_each_run_of_the_division_is_one_of_a_qdl(tmp_path: Path) -> None:
    rows = plan(REQUEST, tmp_path)
    kinds = ("performance", "accuracy", "TEST01")
    assert [row.name for row in rows] == [f"Offline-{kind}" for kind in kinds]
    assert all(row.config.qdl and row.config.url == (ELSEWHERE,) for row in rows)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"category": "edge"},
            "--category edge is not in the Network division, which has only the datacenter suite",
        ),
        (
            {"category": "datacenter,edge"},
            "the Network division, which has only the datacenter suite",
        ),
        ({"benchmark": "resnet"}, "--benchmark resnet is not in the category datacenter"),
        *(
            ({"benchmark": name}, f"--division network: the result of {name} counts tokens")
            for name in ("whisper", "llama2-70b-99.9", "e2e-rag-qna")
        ),
        (
            {"benchmark": "whisper", "division": "closed"},
            "--backend kserve: the result of whisper counts tokens, but this backend reports none",
        ),
        ({"folder": "mine"}, "--folder is only for the open division"),
        ({"options": {"model": "digits"}}, "pass their URLs"),
        ({"division": "closed", "options": {"qdl": True}}, "--qdl is not for the closed division"),
        *(
            ({"options": {**REQUEST.options, "url": url}}, f"--url {url} is this machine")
            for url in (
                "http://127.0.0.1:8000",
                "http://localhost:8000",
                "https://[::1]:8000",
                "http://127.9.9.9",
                "http+unix:///run/server.sock",
            )
        ),
    ],
)
def test_a_request_outside_the_rules_is_reported_in_one_line(
    changed: Mapping[str, Any], told: str
) -> None:
    assert told in refusal(replace, REQUEST, **changed)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"max_batch": 8},
            "--max-batch 8 is not allowed with --qdl, because a QDL may not batch queries",
        ),
        ({"arrivals": "a.csv"}, "--arrivals replaces LoadGen"),
        ({"backend_option": ["encoding=shm"]}, "all queries must cross the network"),
        (
            {"header": ["Content-Encoding=env:GZIP"]},
            "--header Content-Encoding is not allowed with --qdl",
        ),
        ({"url": None}, "--qdl can only be used with a server: add --url"),
    ],
)
def test_option_forbidden_to_a_qdl_is_refused_before_the_run(
    options: Mapping[str, Any], told: str
) -> None:
    values = {"scenario": "server", "backend": "kserve", "url": [ELSEWHERE], "qdl": True, **options}
    assert told in refusal(RunConfig.of, **{k: v for k, v in values.items() if v is not None})


def test_backend_without_a_name_request_is_refused_before_the_first_run(tmp_path: Path) -> None:
    asked = replace(REQUEST, options={**REQUEST.options, "backend": "openai"})
    (told,) = problems(asked, plan(asked, tmp_path))
    assert told.startswith("--qdl: backend 'openai' has no request for the server's name")
    assert list(problems(REQUEST, plan(REQUEST, tmp_path))) == []


def test_an_address_of_this_machines_cards_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def cards() -> dict[str, Any]:
        return {"eth0": [type("Card", (), {"address": "10.0.0.2"})]}

    assert network.urls_here({"url": [ELSEWHERE, "http://db7:80", "nonsense"]}) == []
    monkeypatch.setattr(psutil, "net_if_addrs", cards)
    assert network.urls_here({"url": ELSEWHERE}) == [ELSEWHERE]
    monkeypatch.setattr(socket, "gethostname", lambda: "DB7")
    assert network.urls_here({"url": "http://db7:80"}) == ["http://db7:80"]


@pytest.mark.parametrize(
    ("told", "qdl", "why"),
    [
        (client(), True, []),
        (client(local=True), True, [f"its server {ELSEWHERE} is on LoadGen's machine"]),
        (client("no name from x: refused"), True, ["LoadGen did not get the servers' names"]),
        (client(""), False, [f"its server {ELSEWHERE} is on another machine, which only"]),
        (client("", local=True), False, []),
        (None, True, []),
    ],
)
def test_run_counts_if_its_servers_are_where_the_division_requires(
    told: Mapping[str, Any] | None, qdl: bool, why: list[str]
) -> None:
    config = RunConfig.of(scenario="offline", backend="kserve", url=[ELSEWHERE], qdl=qdl)
    found = list(network.forbidden(config, told))
    assert [line[: len(begin)] for line, begin in zip(found, why, strict=True)] == why


def test_run_beside_its_server_is_marked_in_the_plan(tmp_path: Path) -> None:
    make_runs(OPEN, tmp_path, client=client(local=True))
    (only,) = {row.why for row in plan(OPEN, tmp_path)}
    assert only.startswith(f"`submit pack` refuses it: its server {ELSEWHERE} is on LoadGen's")


def test_a_network_needs_its_keys_and_its_diagram(tmp_path: Path) -> None:
    make_runs(OPEN, tmp_path / "work", client=client())
    rows = plan(OPEN, tmp_path / "work")
    with pytest.raises(ConfigError) as raised:
        pack(OPEN, rows, {**ANSWERS, "accelerators_per_node": "1"}, tmp_path / "tree", None)
    missing = [line.partition(" ")[0] for line in str(raised.value).splitlines()]
    recorded = ("number_connections", "network_protocol", "net_software_stack_loadgen")
    assert {*NETWORK_FACTS} - {*recorded} | {"network_diagram"} <= set(missing)
    assert set(missing).isdisjoint((*recorded, "number_of_nodes", "is_network"))
    # The system consists of servers, about which this machine knows nothing.
    of_servers = {"host_processor_model_name", "host_memory_capacity", "operating_system"}
    assert of_servers | {"framework"} <= set(missing)


def test_the_keys_are_those_of_the_round() -> None:
    assert tuple(NETWORK_FACTS) == load_round().system_keys.network


def described(folder: Path) -> Path:
    """Writes a --describe file for a system of servers, and its diagram."""
    rules = load_round()
    keys = [*rules.system_keys.meaningful, *rules.system_keys.network]
    fixed = ("division", "submitter", "system_name", "system_type", "number_of_nodes")
    facts = {key: f"the {key}" for key in keys if key not in (*fixed, "number_connections")}
    facts |= {**ANSWERS, "host_processors_per_node": "2", "host_processor_core_count": "64"}
    facts |= {"accelerators_per_node": "1", "network_diagram": "plan.PNG"}
    facts["starting_weights_filename"] = "digits.onnx"
    (folder / "plan.PNG").write_bytes(b"\x89PNG")
    (folder / "describe.yaml").write_text(yaml.safe_dump(facts))
    return folder / "describe.yaml"


def test_a_network_is_packed_with_diagram_and_source_of_its_qdl(tmp_path: Path) -> None:
    backend = {"framework": "node-1 0.1.0", "protocol": "KServe v2 over HTTP", "url": ELSEWHERE}
    make_runs(OPEN, tmp_path / "work", client=client(), backend_description=backend)
    answers = read_answers_file(described(tmp_path), load_round())
    found = pack(OPEN, plan(OPEN, tmp_path / "work"), answers, tmp_path / "tree", None)
    top = found.tree / "open/LabOrg"
    system = json.loads((top / "systems/box.json").read_text())
    assert system["is_network"] == "true"
    assert (system["number_connections"], system["number_of_nodes"]) == ("64", "1")
    for key in ("network_protocol", "framework", "network_topology"):
        assert system[key] == f"the {key}"
    assert (top / "documentation/network_diagram.png").read_bytes() == b"\x89PNG"
    qdl = top / "src/resnet/qdl"
    for name in ("wire/http1.py", "run/measured/client/nodes.py", "backends/kserve.py"):
        assert (qdl / name).read_text() == (Path(network.__file__).parents[2] / name).read_text()
    readme = (top / "results/box/resnet/Offline/README.md").read_text()
    assert "| servers | 1, 64 connections to each: Network SUT: node-1 |" in readme
    assert " --url http://SERVER:PORT" in readme
    address = ELSEWHERE.removeprefix("http://").partition(":")[0]
    texts = [path for path in found.tree.rglob("*") if path.suffix in (".md", ".json", ".yaml")]
    assert [path for path in texts if address in path.read_text()] == []
    left = {finding.rule for finding in validate(found.tree, ROUND).findings}
    assert left == {"network-sut"}  # network-sut is found, because the logs belong to other runs


def test_a_rehearsal_with_remote_servers_needs_no_description(tmp_path: Path) -> None:
    rehearsal = replace(OPEN, rehearsal=True)
    make_runs(rehearsal, tmp_path / "work", client=client())
    found = pack(rehearsal, plan(rehearsal, tmp_path / "work"), {}, tmp_path / "tree", None)
    left = {finding.rule for finding in validate(found.tree, ROUND).findings}
    # The rule `network-sut` finds a fault, because the logs belong to other runs.
    assert left == {"rehearsal", "network-sut"}


def test_missing_diagram_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "describe.yaml").write_text("network_diagram: nowhere.png")
    with pytest.raises(ConfigError, match=r"nowhere\.png does not exist"):
        read_answers_file(tmp_path / "describe.yaml", load_round())


def of_network(tree: Path, sut_name: str, took_ns: int, **system: Any) -> list[Finding]:
    """Returns the findings for the good tree if it is declared as a tree of the Network division."""
    for path in (tree / CLOSED).rglob(DETAIL):
        folder = str(path.parent.relative_to(tree))
        log(folder, sut_name=sut_name, get_sut_name_duration_ns=took_ns)(tree)
    path = tree / JSON
    keys = dict.fromkeys(load_round().system_keys.network, "x")
    content = {"division": "network", "is_network": "true", **keys, **system}
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    rename("closed", "network")(tree)
    return validate(tree, ROUND).findings


def test_a_good_tree_of_the_network_division_has_no_findings(tree: Path) -> None:
    (category,) = of_network(tree, "Network SUT: a, b", 90_000)
    assert category.expected == "datacenter, in this division"


def test_a_name_without_a_round_trip_is_found(tree: Path) -> None:
    found = of_network(tree, "Network SUT: a", 320, network_rate="")
    assert {f.actual for f in found if f.rule == "network-sut"} == {"get_sut_name_duration_ns: 320"}
    assert "network_rate: ''" in {f.actual for f in found}


def test_only_a_rehearsal_may_share_loadgens_machine(tree: Path) -> None:
    of_network(tree, "Network SUT: a (same machine)", 90_000)
    for words, counts in (([], True), (["--rehearsal"], False)):
        ended = run_here("submit", "check", str(tree), "--json", *words)
        assert ended.status == 4
        said = json.loads(ended.printed)
        assert ("same-machine" in {f["rule"] for f in said["findings"]}) is counts
        assert ("same-machine" in {f["rule"] for f in said["left_out"]}) is not counts


def test_rehearsal_beside_its_servers_has_a_note(tmp_path: Path) -> None:
    url = "http://127.0.0.1:8000"
    options = {**REQUEST.options, "url": [url]}
    rehearsal = replace(REQUEST, rehearsal=True, options=options)
    assert list(notes(REQUEST)) == []
    write_request(tmp_path, rehearsal)
    ended = run_here("submit", "plan", "--work", str(tmp_path))
    assert ended.status == 0
    assert f"--url {url} is this machine: a rehearsal may use it" in ended.said


@pytest.mark.slow
@pytest.mark.usefixtures("real_runs")
def test_a_rehearsal_with_serve_from_plan_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Makes real runs of one second each against a real server, then packs and checks the runs."""
    pytest.importorskip("onnxruntime")
    work = ["--work", str(tmp_path / "work")]
    words = [
        *("--rehearsal", "--duration", "1s", "--division", "network", "--submitter", "LabOrg"),
        *("--system", "box", "--category", "datacenter", "--benchmark", "3d-unet-99"),
        *("--model", "digits", "--backend", "kserve"),
    ]
    with serving("digits", "--backend", "ort", "--postprocess", "--name", "node-1") as served:
        url = f"http://127.0.0.1:{served.port}"
        assert main(["submit", "run", *work, *words, "--url", url]) == 0
    assert main(["submit", "pack", *work]) == 0
    tree = tmp_path / "work/tree"
    name = '"value": "Network SUT: node-1 (same machine)"'
    logs = list(tree.rglob(DETAIL))
    assert len(logs) == 3
    assert all(name in log.read_text() for log in logs)
    capsys.readouterr()
    assert main(["submit", "check", str(tree), "--rehearsal"]) == 0
    assert "same-machine x 3" in capsys.readouterr().out
    assert main(["submit", "check", str(tree)]) == 4
