"""The verb `bricks` cuts, runs, constructs and publishes bricks (requirements DB1 to DB11, TU5 and BO10)."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.main import main
from harness.errors import ConfigError
from harness.explain.bricks import job as bricks
from harness.explain.bricks.cut import cutting, synthetic
from harness.explain.bricks.tables import construct as brick_tables
from harness.explain.bricks.tables import mining
from harness.explain.bricks.tables.construct import construct
from harness.explain.bricks.time import runs as brick_runs
from harness.explain.pieces.cut import Cut
from harness.explain.pieces.database import Database
from harness.machine import host
from harness.models.graph.graph import Graph
from harness.models.graph.onnx_file import read
from harness.models.made import zoo
from tests.builders.models.nets import Net, inception, residual
from tests.builders.refusals import Said
from tests.builders.support import present

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
FLOAT = onnx.TensorProto.FLOAT


def pieces_of(graph: Graph, most: int) -> list[Cut]:
    return [Cut(graph, piece) for piece in cutting.by_groups(graph, most)]


@pytest.mark.parametrize("rule", [cutting.by_groups, cutting.by_chains])
@pytest.mark.parametrize("make", [residual, inception])
def test_every_layer_is_in_one_piece_and_none_is_too_long(
    tmp_path: Path, rule: Any, make: Any
) -> None:
    graph = read(make(tmp_path / "net.onnx"))
    for most in range(1, 11):
        pieces = rule(graph, most)
        assert sorted(n.index for piece in pieces for n in piece) == [n.index for n in graph.layers]
        assert max(map(len, pieces)) <= most


def test_pieces_follow_the_pieces_that_they_read(tmp_path: Path) -> None:
    graph = read(inception(tmp_path / "net.onnx"))
    for most in (1, 4, 6):
        computed = set(graph.inputs)
        for cut in pieces_of(graph, most):
            assert set(cut.inputs) <= computed
            computed |= set(cut.outputs)


def test_operators_that_runtimes_fuse_are_not_separated(tmp_path: Path) -> None:
    graph = read(residual(tmp_path / "net.onnx"))
    for cut in pieces_of(graph, 4):
        assert cut.nodes[0].op_type == "Conv", "neither Relu nor Add begins a piece"


def test_the_cutting_rule_falls_back_less_than_the_published_one(tmp_path: Path) -> None:
    graph = read(inception(tmp_path / "net.onnx", modules=4))
    shares = {
        rule: brick_tables.fallback_share([len(piece) for piece in rule(graph, 6)], 6)
        for rule in (cutting.by_groups, cutting.by_chains)
    }
    assert shares[cutting.by_groups] <= 0.1
    assert shares[cutting.by_chains] > 0.3


@pytest.mark.parametrize("make", [residual, inception])
def test_every_brick_stands_alone_and_holds_no_weight(tmp_path: Path, make: Any) -> None:
    path = make(tmp_path / "net.onnx")
    secrets = [t.raw_data for t in onnx.load(path).graph.initializer]
    graph = read(path)
    for most in (1, 4):
        for cut in pieces_of(graph, most):
            model = cut.model()
            onnx.checker.check_model(model, full_check=True)
            content = model.SerializeToString()
            assert not any(secret[at : at + 16] in content for secret in secrets for at in (0, 64))
            session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
            feed = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
            actual = [array.shape for array in session.run(None, feed)]
            assert actual == [tensor.shape for tensor in cut.brick.outputs]


def test_the_same_piece_of_two_models_is_the_same_brick(tmp_path: Path) -> None:
    """The stride distinguishes bricks, whereas weights and names do not."""
    digests = [
        {cut.brick.digest for cut in pieces_of(read(residual(tmp_path / f"{i}.onnx", **how)), 4)}
        for i, how in enumerate(({"seed": 1}, {"seed": 2, "blocks": 5}, {"stride": 2}))
    ]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]
    one, again = (pieces_of(read(tmp_path / f"{i}.onnx"), 4)[0].model() for i in (0, 1))
    assert one.SerializeToString() == again.SerializeToString(), "weights come from the digest"


def test_shapes_computed_in_the_model_become_numbers_of_the_brick(tmp_path: Path) -> None:
    net = Net()
    whole = net.add("Shape", "x")
    for name, value in (("zero", np.array([0])), ("rest", np.array([-1]))):
        net.weights.append(onnx.numpy_helper.from_array(value, name))
    shape = net.add("Concat", net.add("Gather", whole, "zero"), "rest", axis=0)
    graph = read(net.save(tmp_path / "m.onnx", net.add("Reshape", net.add("Relu", "x"), shape)))
    assert [n.op_type for n in graph.layers] == ["Relu", "Reshape"]
    (cut,) = pieces_of(graph, 4)
    assert cut.brick.outputs[0].shape == (1, 16 * 16 * 16)
    ort.InferenceSession(cut.model().SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_layer_whose_attribute_may_be_trained_is_not_published(
    tmp_path: Path, refuses: Said
) -> None:
    net = Net()
    value = onnx.numpy_helper.from_array(np.ones(2, np.float32))
    then = onnx.helper.make_graph(
        [onnx.helper.make_node("Constant", [], ["t"], value=value)],
        "then",
        [],
        [onnx.helper.make_tensor_value_info("t", FLOAT, [2])],
    )
    net.weights.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    chosen = net.add("If", "yes", then_branch=then, else_branch=then)
    total = net.add("ReduceSum", net.add("Relu", "x"))
    path = net.save(tmp_path / "m.onnx", net.add("Add", total, chosen))
    nodes = {n.op_type: n for n in read(path).nodes}
    assert Cut(read(path), (nodes["If"],)).brick.why_private is not None
    random = tmp_path / "random.onnx"
    net = Net()
    noise = net.add("RandomNormal", shape=[1], dtype=1)
    loop = onnx.helper.make_attribute("then_branch", then)
    net.save(random, net.add("Add", net.add("Relu", "x"), noise))
    model = onnx.load(random)
    model.graph.node[0].attribute.append(loop)
    onnx.save(model, random)
    assert "may contain trained numbers" in refuses(
        "bricks", random, "--structure", "--publish", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


def _content(
    ns: dict[str, int],
    pieces: list[tuple[str, list[str], list[str]]],
    whole_ns: int,
    once_ns: int = 0,
) -> dict[str, Any]:
    """pieces: tuples of (brick, inputs, outputs)."""
    model = {
        "layers": [brick for brick, *_ in pieces],
        "pieces": [
            {"brick": brick, "layers": [i], "inputs": inputs, "outputs": outputs}
            for i, (brick, inputs, outputs) in enumerate(pieces)
        ],
        "whole": {"cpu_ns": [whole_ns], "wall_ns": [whole_ns]},
        "overhead": {"cpu_ns": [once_ns], "wall_ns": [once_ns]},
    }
    once = {"cpu_ns": [once_ns], "wall_ns": [once_ns]}
    bricks = {
        name: {"result": {"cpu_ns": [took], "wall_ns": [took], "beside": once}}
        for name, took in ns.items()
    }
    return {"models": {"m": model}, "bricks": bricks, "threads": 1}


_FORK = [("a", ["x"], ["1"]), ("b", ["1"], ["2"]), ("c", ["1"], ["3"]), ("d", ["2", "3"], ["y"])]


def test_the_critical_path_is_the_longer_branch() -> None:
    content = _content({"a": 10, "b": 20, "c": 50, "d": 5}, _FORK, whole_ns=100)
    times = construct(content["models"]["m"], content["bricks"], "cpu_ns")
    assert (times.sequential_ns, times.critical_ns, times.covered) == (85, 65, 1)


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=4), st.integers(0, 2000))
def test_the_critical_path_is_never_longer_than_all_bricks(ns: list[int], once_ns: int) -> None:
    content = _content(dict(zip("abcd", ns, strict=True)), _FORK, 100, once_ns)
    times = construct(content["models"]["m"], content["bricks"], "cpu_ns")
    assert times.critical_ns <= times.sequential_ns + 1e-9


def test_the_fixed_cost_of_a_run_is_counted_once() -> None:
    content = _content({"a": 10, "b": 20, "c": 50, "d": 5}, _FORK, whole_ns=100, once_ns=2)
    times = construct(content["models"]["m"], content["bricks"], "cpu_ns")
    assert (times.sequential_ns, times.overhead_ns) == (85 - 4 * 2 + 2, 3 * 2)


@pytest.mark.parametrize(
    ("maker_ns", "readers_ns", "left_ns"),
    [
        # In separate bricks, the maker converts its tensor back, and each reader converts the tensor again; the model
        # needs neither conversion.
        (7, (3, 2), 0),
        # One reader takes the plain layout, so the model converts the tensor back once.
        (7, (3, 0), 7),
        # The maker writes the plain layout, so the model converts the tensor once for both readers.
        (0, (3, 2), 3),
        (0, (0, 0), 0),
        (None, (3, 2), 0),  # the maker accepts both layouts, so the model needs no conversion
        (7, (None, 2), 0),  # the first reader also accepts both layouts
    ],
)
def test_layout_conversions_absent_from_the_model_are_subtracted(
    maker_ns: int | None, readers_ns: tuple[int | None, int | None], left_ns: int
) -> None:
    own = {"a": 100, "b": 100, "c": 100}
    reorders = dict(zip("abc", (maker_ns, *readers_ns), strict=True))
    ns = {name: 100 + (reorders[name] or 0) for name in own}
    content = _content(ns, _FORK[:3], whole_ns=300)
    for name, brick in content["bricks"].items():
        at = reorders[name]
        ends = (
            {"inputs_ns": [0], "outputs_ns": [at]}
            if name == "a"
            else {"inputs_ns": [at], "outputs_ns": [0]}
        )
        brick["result"]["reorders"] = ends
    times = construct(content["models"]["m"], content["bricks"], "cpu_ns")
    assert times.sequential_ns == 300 + left_ns


def test_the_saving_counts_every_brick_once() -> None:
    pieces = [("a", ["x"], ["1"]), ("a", ["1"], ["2"]), ("b", ["2"], ["y"])]
    saved = present(brick_tables.saving(_content({"a": 10, "b": 5}, pieces, whole_ns=30), "cpu_ns"))
    assert (saved.whole_ns, saved.bricks_ns, saved.factor) == (30, 15, 2)


def test_errors_name_the_worst_model() -> None:
    actual = present(brick_tables.errors({"a": 1.1, "b": 0.5, "c": 1.0}))
    assert (actual.worst, actual.worst_ratio) == ("b", 0.5)
    assert actual.mean == pytest.approx(0.2)


def test_models_that_share_layers_are_alike(tmp_path: Path) -> None:
    graphs = {
        "small": read(residual(tmp_path / "small.onnx")),
        "large": read(residual(tmp_path / "large.onnx", blocks=6)),
        "other": read(inception(tmp_path / "other.onnx")),
    }
    content = {
        "models": {n: {"layers": [g.digest(x) for x in g.layers]} for n, g in graphs.items()}
    }
    shares = brick_tables.jaccard(content)
    assert all(shares[name, name] == 1 for name in graphs)
    assert all(shares[a, b] == shares[b, a] for a in graphs for b in graphs)
    assert shares["small", "large"] > shares["small", "other"]


@pytest.mark.slow
def test_two_residual_networks_are_more_similar_than_other_kinds(tmp_path: Path) -> None:
    deeper = zoo.Builder("resnet101_v1")
    zoo.resnet(deeper, stride_in_first=True, depths=(3, 4, 23, 3))
    onnx.save(deeper.model, tmp_path / "resnet101.onnx")
    paths = {
        "resnet50": zoo.make("resnet50_v1"),
        "resnet101": tmp_path / "resnet101.onnx",
        "vgg16": zoo.make("vgg16"),
    }
    graphs = {name: read(path) for name, path in paths.items()}
    assert len(graphs["resnet101"].layers) == 345  # the number comes from Benanza, table I
    shares = brick_tables.jaccard(
        {"models": {n: {"layers": [g.digest(x) for x in g.layers]} for n, g in graphs.items()}}
    )
    # The deeper stages of resnet101 add no new kinds of layers.
    assert shares["resnet50", "resnet101"] == 1
    assert shares["resnet50", "resnet101"] > shares["resnet50", "vgg16"]


def test_common_chains_and_blocks_are_found() -> None:
    op_types = ["Conv", "Relu", *["Conv", "Relu", "Conv", "Add", "Relu"] * 3]
    readers = [[1], *([] for _ in op_types[1:])]
    for end, after in pairwise([1, 6, 11, 16, 17]):
        if after < 17:
            readers[end] = [end + 1, end + 4]
            for i in range(end + 1, end + 5):
                readers[i] = [i + 1]
    content = {"models": {"m": {"op_types": op_types, "readers": readers}}}
    assert mining.chains(content)[0].operators in {
        ("Conv", "Relu", "Conv"),
        ("Relu", "Conv", "Relu"),
    }
    (block,) = mining.blocks(content)
    assert block.operators == ("Conv", "Relu", "Conv", "Add")
    assert block.times == 3


@pytest.mark.slow
def test_the_chain_of_a_residual_network_is_conv_norm_relu(tmp_path: Path) -> None:
    zoo.write("resnet50_v1", tmp_path / "m.onnx")
    graph = read(tmp_path / "m.onnx")
    place = {node.index: i for i, node in enumerate(graph.layers)}
    readers = [
        [place[r.index] for name in node.outputs for r in graph.consumers.get(name, ())]
        for node in graph.layers
    ]
    content = {"models": {"m": {"op_types": [n.op_type for n in graph.layers], "readers": readers}}}
    first = mining.chains(content)[0]
    assert (first.operators, first.times) == (("Conv", "BatchNormalization", "Relu"), 33)
    imitation = synthetic.synthesize(graph, 60)
    assert imitation.distance < 0.1
    assert {n.op_type for n in imitation.model.graph.node} <= {n.op_type for n in graph.layers}
    onnx.checker.check_model(imitation.model)
    session = ort.InferenceSession(
        imitation.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    session.run(None, {"image": np.ones((1, 3, 224, 224), np.float32)})


@pytest.mark.parametrize("change", [{"layers": []}, {"op_types": ["Conv"]}])
def test_a_changed_result_is_refused_in_one_line(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    where = ["--database", str(tmp_path / "b.sqlite"), "--out", str(out)]
    assert main(_bricks(str(residual(tmp_path / "net.onnx")), *where)) == 0
    content = json.loads((out / "bricks.json").read_text())
    for model in content["models"].values():
        model.update(change)
    (out / "bricks.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["bricks", "--from", str(out), "--json"]) == 2
    output = capsys.readouterr().err
    assert "bricks.json is not valid `bricks` output" in output
    assert output.count("\n") == 1


def test_progress_names_each_model_and_the_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(residual(tmp_path / f"{name}.onnx")) for name in ("one", "two")]
    where = ["--database", str(tmp_path / "b.sqlite"), "--out", str(tmp_path / "out")]
    assert main(_bricks(*models, *where)) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"harness: model 1 of 2: one, (\d+) of \1 bricks", first)
    assert re.fullmatch(
        r"harness: model 2 of 2: two, 0 of \d+ bricks; about \d+ s left for all models", second
    )


def _bricks(*words: str) -> list[str]:
    return ["bricks", *words, "--rounds", "1"]


def test_a_run_is_stored_whole_and_shown_again_from_its_files(tmp_path: Path, prints: Said) -> None:
    one, two = residual(tmp_path / "one.onnx"), inception(tmp_path / "two.onnx")
    common = ["--database", str(tmp_path / "b.sqlite"), "--out"]
    output = prints(*_bricks(str(one), str(two), *common, str(tmp_path / "out")))
    content = json.loads((tmp_path / "out/bricks.json").read_text())
    assert all(brick["fresh"] for brick in content["bricks"].values())
    assert set(brick_tables.ratios(content, "cpu_ns")) == {"one", "two"}
    assert "construction" in output
    assert "Jaccard" in output
    page = (tmp_path / "out/bricks.html").read_bytes()
    (tmp_path / "out/bricks.html").unlink()
    assert prints("bricks", "--from", tmp_path / "out") == output
    assert (tmp_path / "out/bricks.html").read_bytes() == page
    numbers = json.loads(prints("bricks", "--from", tmp_path / "out", "--json"))
    for name, model in numbers["models"].items():
        assert model["cpu"]["ratio"] == brick_tables.ratios(content, "cpu_ns")[name]
        assert model["layers"] == len(content["models"][name]["layers"])
    assert {row["brick"] for row in numbers["bricks"]} == set(content["bricks"])
    assert all(row["cpu_ns"] > 0 and row["is_fresh"] for row in numbers["bricks"])
    # Neither a second call nor a larger model made of the same bricks has anything to run.
    assert "run         0 of " in prints(*_bricks(str(one), *common, str(tmp_path / "again")))
    larger = residual(tmp_path / "larger.onnx", seed=5, blocks=6)
    assert "run         0 of " in prints(*_bricks(str(larger), *common, str(tmp_path / "larger")))


def test_published_bricks_reveal_nothing_about_the_model(tmp_path: Path, refuses: Said) -> None:
    path = residual(tmp_path / "secret.onnx")
    out = tmp_path / "public"
    assert main(["bricks", str(path), "--structure", "--publish", str(out)]) == 0
    index = json.loads((out / "index.json").read_text())
    names = [row["brick"] for row in index["bricks"]]
    assert names == sorted(names)
    secrets = [t.raw_data[:16] for t in onnx.load(path).graph.initializer] + [b"Conv0", b"secret"]
    for row in index["bricks"]:
        content = (out / row["file"]).read_bytes()
        assert not any(secret in content for secret in secrets)
        assert row["kept_values"] == 0
    assert "already exists and will not be overwritten" in refuses(
        "bricks", path, "--structure", "--publish", out
    )


def test_json_is_the_only_output_and_repeats_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prints: Said
) -> None:
    path, out = residual(tmp_path / "net.onnx"), tmp_path / "out"
    words = _bricks(str(path), "--database", str(tmp_path / "b.sqlite"), "--out", str(out))
    assert main([*words, "--publish", str(tmp_path / "public"), "--json"]) == 0
    first = capsys.readouterr()
    assert "published" in first.err
    assert f"results     {out}" in first.err
    assert prints("bricks", "--from", out, "--json") == first.out
    model = json.loads(prints("bricks", path, "--structure", "--json"))["models"]["net"]
    assert model["cpu"] is None
    assert model["bricks"] == json.loads(first.out)["models"]["net"]["bricks"]


def test_bricks_without_a_run_are_counted_as_not_run(tmp_path: Path, prints: Said) -> None:
    output = prints("bricks", residual(tmp_path / "net.onnx"), "--structure").splitlines()[-1]
    assert re.fullmatch(r"run         0 of (\d+) bricks now, \1 not run", output)


def test_a_made_up_model_has_the_operators_of_its_model(
    tmp_path: Path, prints: Said, refuses: Said
) -> None:
    path, file = inception(tmp_path / "net.onnx"), tmp_path / "made.onnx"
    words = ["bricks", str(path), "--structure", "--synthetic", str(file)]
    assert "50 layers" in prints(*words, "--synthetic-layers", "50")
    graph, original = read(file), read(path)
    distance = synthetic.histogram_distance(
        [n.op_type for n in graph.layers], [n.op_type for n in original.layers]
    )
    assert distance < 0.1
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((1, 16, 16, 16), np.float32)})
    assert "exists" in refuses(*words)


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ((), "bricks needs models"),
        (("-G", "0", "digits", "--rounds", "0"), "--most-layers: 0 must be between 1 and 1,000,000"),
        (("-G", "0", "digits", "--rounds", "x"), "--rounds: 'x' is not a whole number"),
        (("-G", "0", "--round", "2"), "unknown option --round: did you mean --rounds?"),
        (("--from", "x", "--threads", "2", "-G", "4"), "drop --most-layers, --threads"),
        (("digits", "--synthetic-layers", "4"), "--synthetic-layers needs --synthetic"),
        (("light/nothing",), "no model named 'light/nothing'"),
        (("digits", "--size", "wide=2"), "names a symbolic dimension that no model has: the models"),
        (("digits", "--size", "wide"), "--size: 'wide': write NAME=N"),
        (("--from", "nowhere"), "nowhere does not exist"),
        (("--from", "nowhere", "digits"), "drop the models"),
        (("digits", "light/squeezenet", "--structure", "--synthetic", "x"), "name exactly one"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_and_nothing_is_run(
    words: tuple[str, ...], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bricks", *words]) == 2
    assert output in capsys.readouterr().err


def test_all_mistakes_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = "light/nothing -G 0 --threads x --size wide --sizes 2 --publish-order"
    assert main(["bricks", *words.split()]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "harness: unknown option --sizes: did you mean --size?",
        "harness: --most-layers: 0 must be between 1 and 1,000,000",
        "harness: --size: 'wide': write NAME=N, e.g. sequence=128",
        "harness: --threads: 'x' is not a whole number",
        "harness: --publish-order needs --publish DIR: add it, or drop --publish-order",
    ]


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path, refuses: Said) -> None:
    (tmp_path / "b.sqlite").write_bytes(b"not a database" * 100)
    path = residual(tmp_path / "net.onnx")
    words = _bricks(
        str(path), "--database", str(tmp_path / "b.sqlite"), "--out", str(tmp_path / "out")
    )
    assert "pass a different --database" in refuses(*words)


def test_an_unwritable_database_is_reported_before_anything_runs(
    tmp_path: Path, refuses: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brick_runs, "measure", lambda *_: pytest.fail("it was run"))
    path, out = residual(tmp_path / "net.onnx"), tmp_path / "out"
    assert "pass a different --database" in refuses(
        *_bricks(str(path), "--database", str(tmp_path), "--out", str(out))
    )
    assert not list(tmp_path.glob("out*"))


def test_measurements_are_kept_when_the_database_fails_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise ConfigError("b.sqlite cannot be used: database is locked")

    monkeypatch.setattr(Database, "add", locked)
    path, out = residual(tmp_path / "net.onnx"), tmp_path / "out"
    words = _bricks(str(path), "--database", str(tmp_path / "b.sqlite"), "--out", str(out))
    assert main(words) == 2
    assert main(["bricks", "--from", f"{out}.partial"]) == 0
    content = json.loads((tmp_path / "out.partial/bricks.json").read_text())
    assert set(brick_tables.ratios(content, "cpu_ns")) == {"net"}


@pytest.mark.parametrize("runs", [0, 1, 7, 30])
def test_ctrl_c_keeps_measurements_in_the_folder_not_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: int
) -> None:
    left = iter(range(runs))

    class Stopping(brick_runs.TimedSession):
        def run(self) -> tuple[int, int]:
            if measuring and next(left, None) is None:
                raise KeyboardInterrupt
            return super().run()

    measuring: list[bool] = []
    filler = brick_runs._filler

    def begin(size_bytes: int) -> Any:
        measuring.append(True)
        return filler(size_bytes)

    monkeypatch.setattr(brick_runs, "TimedSession", Stopping)
    monkeypatch.setattr(brick_runs, "_filler", begin)
    path, out, base = residual(tmp_path / "n.onnx"), tmp_path / "out", tmp_path / "b.sqlite"
    words = ["bricks", str(path), "--database", str(base), "--out", str(out)]
    assert main(words) == 130
    told = f"stopped: bricks --from {out}.partial shows the results so far"
    assert told in capsys.readouterr().err
    content = json.loads((tmp_path / "out.partial/bricks.json").read_text())
    samples = [
        brick["result"]["cpu_ns"] for brick in content["bricks"].values() if "result" in brick
    ]
    assert bool(samples) == (runs == 30)
    assert main(["bricks", "--from", f"{out}.partial"]) == 0
    database = Database(base, host.fingerprint()["machine"], content["version"])
    assert database.read(content["bricks"], bricks.setting(threads=1)) == {}


def test_a_model_with_a_failed_brick_has_no_ratio_and_no_saving(tmp_path: Path) -> None:
    content = _content({"a": 10}, _FORK[:2], whole_ns=100)
    content["bricks"]["b"] = {"result": {"failed": "no kernel"}}
    assert brick_tables.ratios(content, "cpu_ns") == {}
    assert brick_tables.saving(content, "cpu_ns") is None
    assert construct(content["models"]["m"], content["bricks"], "cpu_ns").covered == 0.5


def test_a_graph_with_a_cycle_is_refused(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Relu", [a], [b]) for a, b in (("p", "q"), ("q", "p"))]
    ends = [onnx.helper.make_tensor_value_info("p", FLOAT, [1])]
    graph = onnx.helper.make_graph(nodes, "g", [], ends)
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(ConfigError, match=r"cycle|do not fit"):
        read(path)


def test_a_model_is_named_by_its_path_if_two_share_a_name(tmp_path: Path, prints: Said) -> None:
    """Bug: tables and pages contained the complete path of every file."""
    files = [tmp_path / folder / "net.onnx" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        residual(file)
    words = ["bricks", "--structure", "--json", "--out", str(tmp_path / "cut"), *map(str, files)]
    assert list(json.loads(prints(*words))["models"]) == ["net", str(files[1])]
