"""The metrics agree with MLCommons' and BFCL's code to the last digit on 1,000 random answers with errors.

The code is loaded from checkouts that environment variables name; modules that are irrelevant to the scores are
replaced by empty modules.
"""

import contextlib
import importlib.util
import io
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.accuracy.mlperf.category_f1 import CategoryF1
from harness.accuracy.mlperf.function_calls import SUBSETS, FunctionCalls
from harness.accuracy.rouge import KINDS, Rouge, sentence_splitter
from harness.datasets.mlperf.function_calls import FunctionCallsDataset
from harness.datasets.parts.prompts.products import messages
from harness.datasets.parts.prompts.tools import tool_of
from harness.types import Answer, DatasetSetup, TensorSpec

COUNT = 1000
pytestmark = pytest.mark.slow


def checkout(variable: str, what: str) -> Path:
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"set {variable} to {what}")
    return Path(folder)


@pytest.fixture
def inference() -> Path:
    return checkout("MLPERF_INFERENCE", "a checkout of mlcommons/inference")


@pytest.fixture
def endpoints() -> Path:
    return checkout("MLPERF_ENDPOINTS", "a checkout of mlcommons/endpoints")


@pytest.fixture
def bfcl() -> Path:
    return checkout("BFCL_EVAL", "the folder bfcl_eval of an unpacked wheel of bfcl-eval")


@contextlib.contextmanager
def stubs(**modules: Mapping[str, object]) -> Iterator[None]:
    """Replaces modules, written as `a__b` for `a.b`. At the end, removes the modules that were loaded while the stubs
    replaced other modules.
    """
    before = dict(sys.modules)
    try:
        for name, members in modules.items():
            dotted = name.replace("__", ".")
            module = ModuleType(dotted)
            module.__path__ = []  # a module with a path counts as a package
            vars(module).update(members)
            sys.modules[dotted] = module
        yield
    finally:
        for name in sys.modules.keys() - before.keys():
            del sys.modules[name]
        sys.modules.update(before)


def load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# Metrics for products.


def random_product(draw: random.Random, right: Mapping[str, Any]) -> str:
    levels = right["ground_truth_category"].split(" > ")
    kind = draw.randrange(12)
    category = " > ".join(levels[: draw.randint(1, len(levels))])
    if kind in (1, 2):
        category += draw.choice([" > Other", " >Other", "  ", " > "])
    if kind == 3:
        category = "Other > " + category
    brand = right["ground_truth_brand"]
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(brand) + 1)
        brand = draw.choice(
            [brand[:at] + brand[at + 1 :], f"{brand[:at]}x{brand[at:]}", brand.upper()]
        )
    used: Any = draw.choice([True, False, 0, 1, "true", "no", "maybe", 1.0, None, 2])
    answer = json.dumps({"category": category, "brand": brand, "is_secondhand": used})
    return {4: answer[:-1], 5: f"```json\n{answer}\n```", 6: "", 7: answer + " ", 8: "[]"}.get(
        kind, answer
    )


def test_products_score_as_with_the_reference(inference: Path, endpoints: Path) -> None:
    draw = random.Random(38)
    words = ["Home & Garden", "Clothing", "Shirts", "Toys", "Über", "Books", "Tools > Saws", "Hats"]
    data = [
        {
            "ground_truth_category": " > ".join(draw.sample(words, draw.randint(1, 5))),
            "ground_truth_brand": draw.choice(["", "Giorgio Armani", "acme", "Ö-Werk AG", "x"]),
            "ground_truth_is_secondhand": draw.random() < 0.5,
            "potential_product_categories": words,
        }
        for _ in range(COUNT)
    ]
    answers = [random_product(draw, one) for one in data]
    schema = endpoints / (
        "src/inference_endpoint/dataset_manager/predefined/shopify_product_catalogue/metadata.py"
    )
    with stubs(
        datasets={"load_dataset": None},
        loguru={"logger": None},
        tabulate={"tabulate": None},
        q3vl={},
        rapidfuzz=vars(pytest.importorskip("rapidfuzz")),
    ):
        product = load(schema, "q3vl.schema").ProductMetadata
        source = inference / "multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl/evaluation.py"
        theirs = load(source, "q3vl.evaluation")
        theirs.init_worker(data)
        rows = [{"qsl_idx": i, "data": a.encode().hex()} for i, a in enumerate(answers)]
        found = theirs._process_chunk((rows, 1))
        expected = theirs.calculate_hierarchical_f1(found["category_dataset_pred_src"])
        brand = theirs.calculate_brand_f1_score(found["brand_pred_src"])
        shown = json.dumps(product.model_json_schema(), indent=2)
    labels = {
        i: {"text": one["ground_truth_category"], "brand": one["ground_truth_brand"]}
        for i, one in enumerate(data)
    }
    score = CategoryF1("uint8").score(
        [Answer(i, a.encode()) for i, a in enumerate(answers)], labels
    )
    assert 0.2 < expected < 0.95
    assert found["num_unparsable_responses"] == score.details["unreadable"] > 100
    assert score.value == expected
    assert score.line == json.dumps({"f1": expected})
    assert score.details["brand"] == brand
    assert shown in messages("", "", "", "")[0]["content"]


def test_prompts_of_products_are_the_clients(endpoints: Path) -> None:
    folder = (
        endpoints / "src/inference_endpoint/dataset_manager/predefined/shopify_product_catalogue"
    )
    with stubs(
        q3vl={},
        inference_endpoint={},
        inference_endpoint__dataset_manager={},
        inference_endpoint__dataset_manager__transforms={
            "RowProcessor": object,
            "Transform": object,
        },
    ):
        load(folder / "metadata.py", "q3vl.metadata")
        formatter = load(folder / "presets.py", "q3vl.presets").ShopifyMultimodalFormatter()
        row = {
            "product_title": "A {hat}",
            "product_description": "<p>\n'soft'",
            "potential_product_categories": json.dumps(["A > B", "Ü"]),
            "product_image_base64": "AAAA",
            "product_image_format": "PNG",
        }
        told = formatter.process_row(dict(row))
    system, user = messages(
        row["product_title"], row["product_description"], row["potential_product_categories"],
        "data:image/PNG;base64,AAAA",
    )  # fmt: skip
    assert system["content"] == told["system"]
    assert user["content"] == told["prompt"]


# Metrics for function calls.


class Model(SimpleNamespace):
    underscore_to_dot = True


@contextlib.contextmanager
def bfcl_code(bfcl: Path) -> Iterator[Any]:
    """Yields BFCL's checker, without the model clients that its table of models would import."""
    before, path = {*sys.modules}, str(bfcl.parent)
    sys.path.insert(0, path)
    models = ModuleType("bfcl_eval.constants.model_config")
    vars(models)["MODEL_CONFIG_MAPPING"] = {"gpt-4o-2024-11-20-FC": Model()}
    sys.modules[models.__name__] = models
    try:
        yield importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    finally:
        sys.path.remove(path)
        for name in {*sys.modules} - before:
            del sys.modules[name]


def samples(bfcl: Path, chosen: str = "all") -> FunctionCallsDataset:
    spec = TensorSpec("request", "string", ("batch",))
    setup = DatasetSetup(inputs=(spec,), data_dir=bfcl / "data", options={"samples": chosen})
    return FunctionCallsDataset(setup)


def changed(value: Any, draw: random.Random) -> Any:
    """Returns a value that is close to the right value, or has a different type."""
    if isinstance(value, list):
        inner = [changed(item, draw) if draw.random() < 0.3 else item for item in value]
        return draw.choice([inner, inner[::-1], inner[:-1], value, str(value)])
    if isinstance(value, dict):
        return {
            key: draw.choice(one) if isinstance(one, list) and one else one
            for key, one in value.items()
        }
    if isinstance(value, str):
        return draw.choice(
            [value, value.upper(), f"{value}.", f" {value}", f"'{value}'", f"{value}x", 3, [value]]
        )
    if isinstance(value, bool):
        return draw.choice([value, not value, int(value), str(value).lower()])
    if isinstance(value, int | float):
        return draw.choice(
            [value, float(value), int(value), value + 1, str(value), f"{value}L", f"{value}f"]
        )
    return value


def written(value: Any, subset: str, draw: random.Random) -> Any:
    """Returns a value as the source text of Java or JavaScript, which the subsets for these languages require."""
    if subset == "simple_javascript" and not isinstance(value, str):
        return json.dumps(value)
    if subset == "simple_java" and not isinstance(value, str):
        if isinstance(value, list):
            inside = ", ".join(json.dumps(item) for item in value)
            forms = [f"new int[]{{{inside}}}", f"new ArrayList<>(Arrays.asList({inside}))", inside]
            return draw.choice(forms)
        if isinstance(value, dict):
            puts = " ".join(f'put("{key}", {json.dumps(one)});' for key, one in value.items())
            return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
        text = json.dumps(value)
        return draw.choice([text, f"{text}L", f"{text}f"])
    return value


def one_call(right: Mapping[str, Any], subset: str, draw: random.Random) -> dict[str, Any]:
    ((name, wanted),) = right.items()
    arguments = {}
    for key, values in wanted.items():
        known = [one for one in values if one != ""]
        if not known or draw.random() < 0.05 or ("" in values and draw.random() < 0.5):
            continue
        value = draw.choice(known)
        if isinstance(value, dict):
            value = {
                k: draw.choice([o for o in v if o != ""] or [""]) if isinstance(v, list) else v
                for k, v in value.items()
            }
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            value = [changed(one, draw) for one in value]
        value = changed(value, draw) if draw.random() < 0.15 else value
        arguments[key] = written(value, subset, draw)
    if draw.random() < 0.04:
        arguments["unknown"] = 1
    name = name.replace(".", "_") if draw.random() < 0.97 else name + "x"
    return {"name": name, "arguments": arguments}


def random_calls(label: Mapping[str, Any], draw: random.Random) -> str:
    """Returns an answer: tool calls, a list of calls, calls within a text, prose, or nothing."""
    right = list(label["right"])
    draw.shuffle(right)
    made = [one_call(one, label["subset"], draw) for one in right]
    if draw.random() < 0.05:
        made = made[:-1]
    if not made and draw.random() < 0.3:
        made = [{"name": "f", "arguments": {}}]
    kind = draw.randrange(10)
    if kind == 0:
        return json.dumps(made)
    if kind == 1:
        inside = [", ".join(f"{k}={v!r}" for k, v in one["arguments"].items()) for one in made]
        return " ".join(f"{one['name']}({text})" for one, text in zip(made, inside, strict=True))
    if kind == 2:
        return draw.choice(["", "I cannot do that", "[]", "null", "{", "print(1)", "f(x, y)"])
    tools = [
        {
            "type": "function",
            "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])},
        }
        for one in made
    ]
    if tools and draw.random() < 0.03:
        tools[0]["function"]["arguments"] = draw.choice(["", "{", "null"])  # type: ignore[index]
    return json.dumps(tools) if tools else "nothing to call"


def their_scorer(endpoints: Path) -> Any:
    """Returns the scorer of mlcommons/endpoints, loaded with its extractor and its table of categories."""
    source = endpoints / "src/inference_endpoint"
    load(source / "evaluation/extractor.py", "inference_endpoint.evaluation.extractor")
    return load(
        source / "evaluation/bfcl_v4_scorer.py", "inference_endpoint.evaluation.bfcl_v4_scorer"
    )


def categories(endpoints: Path) -> dict[str, object]:
    """Returns CATEGORY_MAP and SINGLE_TURN_SUBSETS from MLCommons' dataset, whose module needs pandas and requests."""
    path = endpoints / "src/inference_endpoint/dataset_manager/predefined/bfcl_v4/__init__.py"
    names: dict[str, Any] = {}
    text = path.read_text()
    begin = text.index("SINGLE_TURN_SUBSETS = [")
    end = text.index("# Reverse lookup")
    exec(text[begin:end], names)
    return {key: names[key] for key in ("CATEGORY_MAP", "SINGLE_TURN_SUBSETS")}


class Scorer:
    """Contains the part of MLCommons' base class that the test uses."""

    def __init_subclass__(cls, **_: object) -> None:
        pass

    def match_sample_index(self, row: Any) -> Any:
        row["sample_index"] = self.sample_index_map[row["sample_uuid"]]  # type: ignore[attr-defined]
        return row


def wrong_if_it_raises(score: Callable[..., float]) -> Callable[..., float]:
    """Returns 0 if the reference's checker raises; in the reference, an unforeseen value ends the whole scoring."""

    def guarded(*values: Any, **more: Any) -> float:
        try:
            return score(*values, **more)
        except (TypeError, AttributeError, KeyError):
            return 0.0

    return guarded


@pytest.mark.limit_s(600)
@pytest.mark.filterwarnings("ignore")  # MLCommons' code causes the warnings
def test_function_calls_score_as_with_the_reference(endpoints: Path, bfcl: Path) -> None:
    pd = pytest.importorskip("pandas")
    draw = random.Random(7)
    dataset = samples(bfcl)
    chosen = draw.sample(range(len(dataset)), COUNT)
    labels: dict[int, Any] = {i: dataset.label(one) for i, one in enumerate(chosen)}
    answers = [random_calls(labels[i], draw) for i in range(COUNT)]
    empty: Mapping[str, object] = {}
    with (
        bfcl_code(bfcl),
        stubs(
            msgspec=empty,
            msgspec__json=empty,
            inference_endpoint=empty,
            inference_endpoint__core=empty,
            inference_endpoint__core__types={"merge_tool_calls": None},
            inference_endpoint__dataset_manager=empty,
            inference_endpoint__dataset_manager__dataset={"Dataset": object},
            inference_endpoint__dataset_manager__predefined=empty,
            inference_endpoint__dataset_manager__predefined__bfcl_v4=categories(endpoints),
            inference_endpoint__evaluation=empty,
            inference_endpoint__evaluation__scoring={"Scorer": Scorer},
        ),
    ):
        module = their_scorer(endpoints)
        theirs = module.BFCLv4Scorer.__new__(module.BFCLv4Scorer)
        frame = pd.DataFrame(
            {
                "ground_truth": [json.dumps(labels[i]["right"]) for i in range(COUNT)],
                "subset": [labels[i]["subset"] for i in range(COUNT)],
                "func_description": [json.dumps(labels[i]["functions"]) for i in range(COUNT)],
            }
        )
        theirs.dataset = SimpleNamespace(dataframe=frame, num_samples=lambda: COUNT)
        theirs.sample_index_map = {str(i): i for i in range(COUNT)}
        theirs.extractor, theirs.ground_truth_column = module.FunctionCallExtractor, "ground_truth"
        outputs = pd.DataFrame({"sample_uuid": [str(i) for i in range(COUNT)], "output": answers})
        theirs.get_scoring_outputs = lambda: outputs
        theirs._score_ast = wrong_if_it_raises(theirs._score_ast)
        with contextlib.redirect_stdout(io.StringIO()):
            expected, _ = theirs.score()
        breakdown = theirs.score_breakdown()
    ours = FunctionCalls("uint8").score(
        [Answer(i, answer.encode()) for i, answer in enumerate(answers)], labels
    )
    assert 0.2 < expected < 0.9
    assert ours.value == pytest.approx(100 * expected, abs=1e-9)
    assert round(ours.value, 2) == breakdown["overall_accuracy"]
    assert round(ours.details["normalised"], 2) == breakdown["normalized_single_turn_score"]
    for name, share in {**breakdown["category_scores"], **breakdown["subset_scores"]}.items():
        assert round(ours.details[name], 2) == share, name


def test_bfcls_samples_and_tools_are_the_references(bfcl: Path) -> None:
    dataset = samples(bfcl, "mlperf")
    assert len(dataset) == 995
    subsets = dataset.describe()["subsets"]
    assert isinstance(subsets, dict)
    assert subsets.items() <= {
        "irrelevance": 24, "live_irrelevance": 88, "live_multiple": 105, "live_parallel": 16,
        "live_parallel_multiple": 24, "live_simple": 25, "multiple": 124, "parallel": 124,
        "parallel_multiple": 124, "simple_java": 62, "simple_javascript": 31, "simple_python": 248,
    }.items()  # fmt: skip
    assert {*subsets} <= {*SUBSETS}
    with bfcl_code(bfcl), their_utils(bfcl) as utils:
        mappings = importlib.import_module("bfcl_eval.constants.type_mappings")
        style = importlib.import_module("bfcl_eval.constants.enums").ModelStyle.OPENAI_COMPLETIONS
        everything = samples(bfcl)
        for index in range(len(everything)):
            label: Any = everything.label(index)
            theirs = utils.convert_to_tool(label["functions"], mappings.GORILLA_TO_OPENAPI, style)
            assert [tool_of(function) for function in label["functions"]] == theirs


@contextlib.contextmanager
def their_utils(bfcl: Path) -> Iterator[Any]:
    """Yields the utilities of BFCL's clients. Modules that these utilities import for other purposes are replaced."""
    path = bfcl / "model_handler/utils.py"
    names = [
        line.split()[1]
        for line in path.read_text().splitlines()
        if line.startswith("from ")
        and not line.startswith(("from typing", "from functools", "from pathlib"))
    ]
    needed = {name for name in names if "constants" not in name}
    modules = {name.replace(".", "__"): Anything() for name in needed}
    with stubs(**modules):
        yield load(path, "bfcl_utils")


class Anything(dict[str, object]):
    """Stands in for a module from which any name can be imported."""

    def __init__(self) -> None:
        super().__init__(__getattr__=lambda _name: object, __all__=[])


# Metrics for transcripts.


def test_transcripts_score_as_with_the_reference(inference: Path) -> None:
    """`wer-whisper` uses a package that copies OpenAI's normaliser; the reference uses the original."""
    pytest.importorskip("whisper_normalizer")
    wer_whisper: Any = importlib.import_module("harness.accuracy.wer_whisper")
    draw = random.Random(5)
    words = [
        "mister",
        "quilter",
        "is",
        "the",
        "apostle",
        "of",
        "the",
        "middle",
        "classes",
        "and",
        "we're",
        "glad",
        "to",
        "welcome",
        "his",
        "gospel",
        "twenty",
        "one",
        "percent",
        "colour",
        "travelled",
        "can't",
        "won't",
        "dr",
        "smith",
        "any",
        "one",
        "into",
        "to",
        "day",
        "some",
        "times",
        "five",
        "hundred",
        "dollars",
        "3",
        "o'clock",
    ]
    letters = " abcdefghijklmnopqrstuvwxyz'0123456789$%+-"
    pairs = []
    for _ in range(COUNT):
        right = [draw.choice(words) for _ in range(draw.randint(1, 20))]
        said = list(right)
        for _ in range(draw.randrange(5)):
            at = draw.randrange(len(said) + 1)
            said[at : at + draw.randrange(3)] = draw.sample(words, draw.randrange(3))
        text = " ".join(said)
        text = draw.choice(
            [
                text,
                text.capitalize() + ".",
                text.replace(" ", ", ", 1),
                text.upper(),
                text.replace(" ", "", 1),
            ]
        )
        pairs.append((draw.choice([text, f" {text}", f"É {text}!"]), " ".join(right)))
    folder = inference / "speech2text"
    with stubs(
        whisper={},
        whisper__normalizers={"EnglishTextNormalizer": wer_whisper.EnglishTextNormalizer},
        manifest={"Manifest": None},
    ):
        load(folder / "legacy_helpers.py", "legacy_helpers")
        load(folder / "helpers.py", "helpers")
        theirs = load(folder / "accuracy_eval.py", "accuracy_eval")
        # Writes an answer into the log as reference_SUT.py does.
        heard = ["".join(c for c in text.lower().strip() if c in letters) for text, _ in pairs]
        rate, errors, total = theirs.word_error_rate(heard, [right for _, right in pairs])
    rows = [Answer(i, text.encode()) for i, (text, _) in enumerate(pairs)]
    ours = wer_whisper.WhisperWordErrorRate("uint8").score(
        rows, {i: right for i, (_, right) in enumerate(pairs)}
    )
    assert 0 < errors < total
    assert ours.value == pytest.approx(rate * 100, abs=1e-12)


def test_summaries_score_as_with_the_reference(inference: Path) -> None:
    rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer")
    if sentence_splitter() is None:
        pytest.skip("nltk has no punkt_tab: set NLTK_DATA")
    names = ("evaluate", "dataset", "torch", "torch__nn", "torch__nn__functional", "torch__utils")
    more = ("torch__utils__data", "transformers")
    empty = dict.fromkeys(("Dataset", "pad", "DataLoader", "AutoModelForCausalLM", "AutoTokenizer"))
    with stubs(**dict.fromkeys((*names, *more), empty)):
        script = load(inference / "language/llama3.1-8b/evaluation.py", "evaluation")
    drawn = random.Random(3)
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "Dr.",
        "Smith",
        "said",
        "no",
        "it",
        "did",
        "not",
        "rain",
        "in",
        "the",
        "U.S.",
        "today",
        "and",
        "e.g.",
        "snow",
    ]

    def text() -> str:
        sentences = (
            " ".join(drawn.choices(words, k=drawn.randint(2, 9))).capitalize() + drawn.choice(".!?")
            for _ in range(drawn.randint(0, 5))
        )
        return drawn.choice(("", " ", "\n")) + drawn.choice((" ", "\n", "  ")).join(sentences)

    pairs = [(text(), text()) for _ in range(COUNT)]
    found = Rouge("uint8").score(
        [Answer(i, one.encode()) for i, (one, _) in enumerate(pairs)],
        {i: right for i, (_, right) in enumerate(pairs)},
    )
    predictions, targets = script.postprocess_text(*map(list, zip(*pairs, strict=True)))
    scorer = rouge_scorer.RougeScorer(KINDS, use_stemmer=True)
    rows = [scorer.score(target, one) for one, target in zip(predictions, targets, strict=True)]
    shown = {k: round(sum(row[k].fmeasure for row in rows) / COUNT * 100, 4) for k in KINDS}
    length = sum(map(len, predictions))
    assert found.line == str({**shown, "gen_len": length, "gen_num": COUNT})


def test_the_frechet_distance_is_left_to_the_reference(inference: Path) -> None:
    """`clip-fid` runs accuracy_coco.py, which takes the options and prints the results that we use."""
    text = (inference / "text_to_image/tools/accuracy_coco.py").read_text()
    for name in ("--mlperf-accuracy-file", "--caption-path", "--output-file"):
        assert f'"{name}"' in text
    for name in ("FID_SCORE", "CLIP_SCORE"):
        assert f'result_dict["{name}"]' in text
    assert "1024, 1024, 3" in text
    video = (inference / "text_to_video/wan-2.2-t2v-a14b/run_evaluation.py").read_text()
    for name in ("--videos-path", "--output-path"):
        assert f'"{name}"' in video
