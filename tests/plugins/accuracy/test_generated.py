"""The metrics for products, function calls, images and videos, checked by hand and with stand-ins for MLCommons'
scripts.
"""

import hashlib
import io
import json
import shlex
import sys
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from harness.accuracy.mlperf.category_f1 import CategoryF1
from harness.accuracy.mlperf.clip_fid import ClipFid
from harness.accuracy.mlperf.function_calls import FunctionCalls
from harness.accuracy.mlperf.vbench import Vbench
from harness.accuracy.parts.calls.calls_in import Call, calls_in, tool_calls
from harness.accuracy.parts.calls.check import are_right
from harness.accuracy.parts.calls.literals import java, javascript
from harness.core import registry
from harness.errors import UnusableAnswer
from harness.types import Answer, Score
from tests.builders.refusals import refusal
from tests.stand_ins.servers import makers

SHIRTS = "Clothing > Shirts > Polo"


def product(category: str, brand: str = "acme", used: Any = False, **more: Any) -> str:
    return json.dumps({"category": category, "brand": brand, "is_secondhand": used, **more})


def products(*pairs: tuple[str, object]) -> Score:
    rows = [Answer(i, answer.encode()) for i, (answer, _) in enumerate(pairs)]
    return CategoryF1("uint8").score(rows, {i: label for i, (_, label) in enumerate(pairs)})


def test_levels_of_categories_count_up_to_the_first_difference() -> None:
    found = products((product(SHIRTS), SHIRTS), (product("Clothing > Hats > Polo"), SHIRTS))
    precision = recall = (3 + 1) / (3 + 3)
    assert found.value == pytest.approx(2 * precision * recall / (precision + recall))
    assert (found.metric, found.samples) == ("category-f1", 2)
    assert found.line == f'{{"f1": {found.value}}}'


@pytest.mark.parametrize(
    "answer",
    [
        "", "a shirt", "[]", product(SHIRTS, more=1), product(SHIRTS, used="perhaps"), "{",
        json.dumps({"category": SHIRTS, "brand": "acme"}), f"```json\n{product(SHIRTS)}\n```",
    ],
)  # fmt: skip
def test_unreadable_answer_has_every_level_wrong(answer: str) -> None:
    found = products((product(SHIRTS), SHIRTS), (answer, SHIRTS))
    assert found.value == pytest.approx(0.5)
    assert found.details["unreadable"] == 1


def test_brands_are_the_same_if_they_are_similar_enough() -> None:
    label = {"text": SHIRTS, "brand": "Giorgio Armani"}
    answers = ["giorgio armani ", "giorgio armanni", "giorgio arman", "armani", "", "xyz"]
    pairs = [(product(SHIRTS, brand), label) for brand in answers]
    assert products(*pairs).details["brand"] == pytest.approx(3 / 6)
    assert products((product(SHIRTS, ""), {"text": SHIRTS, "brand": ""})).details["brand"] == 1


def test_label_without_a_category_is_refused_before_the_run() -> None:
    told = refusal(CategoryF1("uint8").check_labels, {0: SHIRTS, 4: " "}, error=ValueError)
    assert told == "the label of sample 4 has no category"


WEATHER = {
    "name": "weather.now",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "factor": {"type": "float"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "place": {"type": "dict"},
            "steps": {"type": "array", "items": {"type": "dict"}},
        },
        "required": ["city"],
    },
}
RIGHT: dict[str, dict[str, Any]] = {
    "weather.now": {
        "city": ["Rome", "Roma"],
        "days": [2, ""],
        "factor": [1.0, ""],
        "tags": [["wind", "rain"], ""],
        "place": [{"lat": [1, 2], "lon": [3, ""]}, ""],
        "steps": [[{"kind": ["a"]}, {"kind": ["b", "c"]}], ""],
    }
}


def tool(name: str = "weather_now", arguments: Any = None, **given: Any) -> dict[str, Any]:
    text = json.dumps(given) if arguments is None else arguments
    return {"type": "function", "function": {"name": name, "arguments": text}}


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        ({"city": "rome"}, True),
        ({"city": "Ro-me."}, True),
        ({"city": "Paris"}, False),
        ({"days": 2}, False),
        ({"city": "Rome", "days": 2}, True),
        ({"city": "Rome", "days": True}, False),
        ({"city": "Rome", "days": "2"}, False),
        ({"city": "Rome", "factor": 1}, True),
        ({"city": "Rome", "nights": 2}, False),
        ({"city": "Rome", "tags": ["Wind", "rain "]}, True),
        ({"city": "Rome", "tags": ["rain", "wind"]}, False),
        ({"city": "Rome", "tags": [1, 2]}, False),
        ({"city": "Rome", "place": {"lat": 2}}, True),
        ({"city": "Rome", "place": {"lat": 2, "lon": 4}}, False),
        ({"city": "Rome", "place": {"lon": 3}}, False),
        ({"city": "Rome", "steps": [{"kind": "A"}, {"kind": "c"}]}, True),
        ({"city": "Rome", "steps": [{"kind": "a"}]}, False),
    ],
)
def test_arguments_are_compared_by_their_types(given: dict[str, Any], is_right: bool) -> None:
    calls = [Call("weather_now", given)]
    assert are_right([WEATHER], calls, [RIGHT], "simple_python") == is_right
    assert are_right([WEATHER], calls, [RIGHT], "live_multiple") == is_right
    assert are_right([WEATHER], calls * 2, [RIGHT, RIGHT], "parallel") == is_right


def test_parallel_calls_match_in_any_order_and_each_once() -> None:
    one, two = Call("weather_now", {"city": "Rome"}), Call("weather_now", {"city": "Oslo"})
    right = [{"weather.now": {"city": ["Oslo"]}}, {"weather.now": {"city": ["Rome"]}}]
    assert are_right([WEATHER], [one, two], right, "parallel")
    assert not are_right([WEATHER], [one, one], right, "parallel")
    assert not are_right([WEATHER], [one, two, two], right, "parallel")
    assert not are_right([WEATHER], [], right, "parallel")


@pytest.mark.parametrize(
    ("text", "kind", "inner", "value"),
    [
        ("5", "integer", None, 5),
        ("5L", "long", None, 5),
        ("5", "long", None, "5"),
        ("1.5f", "float", None, 1.5),
        ("2.5e1", "double", None, 25.0),
        ("true", "boolean", None, True),
        ("yes", "boolean", None, "yes"),
        ("new int[]{1, 2}", "Array", "integer", [1, 2]),
        ('new ArrayList<String>(Arrays.asList("a", "b"))', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<Integer>() {{ add(3); add(4); }}", "ArrayList", "integer", [3, 4]),
        ("new ArrayList<>()", "ArrayList", None, []),
        (
            'new HashMap<String, Object>() {{ put("a", 1); put("b", true); }}', "HashMap", None,
            {"a": 1, "b": True},
        ),
        ("controller", "any", None, "controller"),
    ],
)  # fmt: skip
def test_literals_of_java_are_read_by_their_types(
    text: str, kind: str, inner: str | None, value: object
) -> None:
    assert java(text, kind, inner) == value


@pytest.mark.parametrize(
    ("text", "kind", "inner", "value"),
    [
        ("'abc'", "String", None, "abc"),
        ("abc", "String", None, "abc"),
        ("12n", "Bigint", None, 12),
        ("-3.5", "float", None, -3.5),
        ("[1, 'two', true]", "array", None, [1, "two", True]),
        ('["a", "b"]', "array", "String", ["a", "b"]),
        ("[[1, 2], [3, 4]]", "array", "array", [[1, 2], [3, 4]]),
        ("new Array(4, 5)", "array", "integer", [4, 5]),
        ("{'a': 1, 'b': [2, 3]}", "dict", None, {"a": 1, "b": [2, 3]}),
        ("{}", "dict", None, {}),
        ("state", "dict", None, "state"),
    ],
)
def test_literals_of_javascript_are_read_by_their_types(
    text: str, kind: str, inner: str | None, value: object
) -> None:
    assert javascript(text, kind, inner) == value


def test_calls_are_found_in_each_form_of_an_answer() -> None:
    expected = [Call("weather_now", {"city": "Rome"})]
    assert calls_in(json.dumps([tool(city="Rome")])) == expected
    named = [{"name": "weather_now", "arguments": {"city": "Rome"}}]
    assert calls_in(json.dumps(named)) == expected
    assert tool_calls(json.dumps(named)) == []
    assert calls_in("I call weather_now(city='Rome').") == expected
    assert calls_in("weather_now(city) needs a city; print('x')") == []
    (nested,) = calls_in("f(x=g(y=1), z=[1, (2, ')')])")
    assert nested == Call("f", {"x": "g(y=1)", "z": [1, [2, ")"]]})
    assert calls_in("I cannot help") == calls_in("") == []


def label(subset: str, right: Any = (RIGHT,)) -> dict[str, Any]:
    return {"subset": subset, "functions": [WEATHER], "right": [*right]}


def calls(*pairs: tuple[object, dict[str, Any]]) -> Score:
    texts = [answer if isinstance(answer, str) else json.dumps(answer) for answer, _ in pairs]
    rows = [Answer(i, text.encode()) for i, text in enumerate(texts)]
    return FunctionCalls("uint8").score(rows, {i: one for i, (_, one) in enumerate(pairs)})


def test_a_sample_that_needs_no_call_is_right_without_one() -> None:
    right = [tool(city="Rome")]
    found = calls(
        ("no function fits", label("irrelevance", ())),
        (right, label("live_irrelevance", ())),
        (right, label("live_relevance", ())),
        # A text that looks like a call is not a tool call.
        ("weather_now(city='Rome')", label("irrelevance", ())),
    )
    assert found.value == 75
    assert found.details["hallucination"] == pytest.approx(100 * (1 + 0) / 2)


def test_categories_have_equal_weight_in_the_normalised_score() -> None:
    right, wrong = [tool(city="Rome")], [tool(city="Paris")]
    found = calls(
        (right, label("simple_python")),
        (wrong, label("simple_java")),
        (right, label("multiple")),
        (right, label("live_simple")),
        (wrong, label("live_multiple")),
        (right, label("live_multiple")),
        ("none", label("irrelevance", ())),
    )
    assert found.value == pytest.approx(100 * 5 / 7)
    non_live, live = (0.5 + 1) / 2, 2 / 3
    assert found.details["non_live"] == pytest.approx(100 * non_live)
    assert found.details["live"] == pytest.approx(100 * live)
    assert found.details["normalised"] == pytest.approx(100 * (non_live + live + 1) / 3)
    assert found.line.startswith("{'Total': 71.4286, ")


@pytest.mark.parametrize("arguments", ["", "no json", "[1]", "3", '"{}"', "null"])
def test_arguments_that_are_no_object_are_wrong(arguments: str) -> None:
    assert calls(([tool(arguments=arguments)], label("simple_python"))).value == 0


def test_labels_and_answers_of_other_kinds_are_refused() -> None:
    told = refusal(FunctionCalls("uint8").check_labels, {3: "text"}, error=ValueError)
    assert told.startswith("the label of sample 3 does not name a BFCL subset")
    assert "answer=calls" in refusal(FunctionCalls, "int32", error=ValueError)


SCRIPTS = Path(__file__).parents[2] / "stand_ins/reference"


def names(monkeypatch: pytest.MonkeyPatch, variable: str, path: Path, *words: str) -> None:
    """Sets the environment variable to a Python script."""
    monkeypatch.setenv(variable, shlex.join([sys.executable, str(path), *words]))


def scorer(script: str) -> str:
    return f"{script} {hashlib.sha256((SCRIPTS / script).read_bytes()).hexdigest()}"


def image(colour: bytes) -> bytes:
    return makers.png_of(colour)


def images(*payloads: bytes) -> Score:
    rows = [Answer(i, payload) for i, payload in enumerate(payloads)]
    return ClipFid("uint8").score(rows, {i: f'caption "{i}"' for i in range(len(rows))})


def test_images_are_scored_by_the_script_that_the_user_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, "IMAGE_SCORER", SCRIPTS / "accuracy_coco.py", "--device", "cpu")
    colours = [makers.colour_of(f'caption "{i}"') for i in range(3)]
    raw = colours[2] * (makers.SIDE * makers.SIDE)
    found = images(image(colours[0]), b64encode(image(colours[1])), raw)
    assert found.value == 31.75
    assert found.details == {"clip_score": 31.75, "fid_score": 23.5}
    expected = "Accuracy Results: {'FID_SCORE': '23.5', 'CLIP_SCORE': '31.75'}, scored by accuracy_coco.py "
    assert found.line.startswith(expected)
    assert found.scorer == scorer("accuracy_coco.py")
    worse = images(image(colours[0]), image(colours[0]), b"")
    assert worse.value == pytest.approx(31.75 / 3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "raise SystemExit('no weights')",
            "IMAGE_SCORER: the program ended with status 1: no weights",
        ),
        ("", "accuracy_coco.py wrote no CLIP_SCORE and FID_SCORE"),
        (
            'import sys; open(sys.argv[6], \'w\').write(\'{"FID_SCORE": "nan", "CLIP_SCORE": 1}\')',
            "accuracy_coco.py wrote scores that are not numbers",
        ),
    ],
)
def test_a_script_without_a_score_is_reported(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accuracy_coco.py").write_text(text)
    names(monkeypatch, "IMAGE_SCORER", tmp_path / "accuracy_coco.py")
    assert refusal(images, image(b"abc"), error=ValueError).startswith(told)


def small() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, format="PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"text", "it is neither RGB of 3,145,728 bytes, nor PNG, nor PNG in base64"),
        (bytes(192), "it is neither RGB of 3,145,728 bytes, nor PNG, nor PNG in base64"),
        (small(), "it has 16 x 16 pixels"),
        (b64encode(b"\x89PNG\r\n\x1a\nx"), ""),
    ],
)
def test_an_answer_that_is_not_an_image_is_named(
    payload: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, "IMAGE_SCORER", SCRIPTS / "accuracy_coco.py")
    told = refusal(images, image(b"abc"), payload, error=UnusableAnswer)
    assert told.startswith("the answer to sample 1 is not an image of 1024 x 1024 pixels: ")
    assert told.endswith(why)


def film(prompt: str) -> bytes:
    return b"\0\0\0\x20ftypisom" + hashlib.sha256(prompt.encode()).digest()


def test_videos_are_scored_by_the_script_that_the_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, "VIDEO_SCORER", SCRIPTS / "run_evaluation.py")
    (tmp_path / "one.mp4").write_bytes(film("black_white"))
    labels = {0: "a cat", 1: "a cat", 2: "black/white", 3: "a dog", 4: "failed"}
    payloads = [
        film("a cat"),
        b64encode(film("a cat")),
        str(tmp_path / "one.mp4").encode(),
        film("x"),
        b"",
    ]
    found = Vbench("uint8").score([Answer(i, one) for i, one in enumerate(payloads)], labels)
    assert found.value == pytest.approx(70.5 * 3 / 4)
    assert found.samples == 5
    assert found.line.startswith("{'vbench_score': 52.875}, scored by run_evaluation.py ")
    assert found.scorer == scorer("run_evaluation.py")
    assert found.details["scene"] == pytest.approx(70.5 * 3 / 4)
    for payload in (b"text", b"not base64"):
        told = refusal(Vbench("uint8").score, [Answer(0, payload)], {0: "a"}, error=UnusableAnswer)
        assert told == (
            "the answer to sample 0 is not a video: "
            "it is neither an MP4 file, nor MP4 in base64, nor the path of one"
        )


@pytest.mark.parametrize("prompt", ["a" * 300, "é" * 125, "a\0b"])
def test_a_prompt_that_cannot_name_a_file_is_refused_before_the_run(
    prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, "VIDEO_SCORER", SCRIPTS / "run_evaluation.py")
    Vbench("uint8").check_labels({0: "a" * 249, 1: "a/b"})
    told = refusal(Vbench("uint8").check_labels, {0: "a", 1: prompt}, error=ValueError)
    assert told == (
        "the prompt of sample 1 cannot be the file name of its video, which VBench expects: "
        "use a prompt of at most 249 bytes without NUL"
    )


def test_prompts_that_differ_in_a_slash_name_different_videos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, "VIDEO_SCORER", SCRIPTS / "run_evaluation.py")
    rows = [Answer(i, film("a_b")) for i in range(2)]
    assert Vbench("uint8").score(rows, {0: "a/b", 1: "a_b"}).value == pytest.approx(70.5)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            "{python} /nowhere/accuracy_coco.py",
            "names /nowhere/accuracy_coco.py, which is not a file",
        ),
        (
            "{python} {script} /nowhere/networks.py",
            "names /nowhere/networks.py, which is not a file",
        ),
        ("/nowhere/python {script}", "names /nowhere/python, which is not a file"),
        ("~/no such.py", "names {home}/no, which is not a file"),
        ("{python} '{script}", "is not a command (No closing quotation)"),
    ],
)
def test_a_command_without_its_files_is_refused_before_the_run(
    command: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    values = {
        "python": sys.executable,
        "script": SCRIPTS / "accuracy_coco.py",
        "home": tmp_path,
    }
    monkeypatch.setenv("IMAGE_SCORER", command.format(**values))
    told = refusal(ClipFid("uint8").check_labels, {0: "a cat"}, error=ValueError)
    assert told.startswith(f"IMAGE_SCORER {why.format(**values)}: export IMAGE_SCORER=")


def test_the_home_folder_of_a_quoted_command_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "accuracy_coco.py").write_text("")
    monkeypatch.setenv("IMAGE_SCORER", f"{sys.executable} ~/accuracy_coco.py --device gpu")
    assert ClipFid.program().script == tmp_path / "accuracy_coco.py"
    assert ClipFid.program().words[1:] == (str(tmp_path / "accuracy_coco.py"), "--device", "gpu")


@pytest.mark.parametrize(
    ("metric", "variable", "name"),
    [(ClipFid, "IMAGE_SCORER", "accuracy_coco.py"), (Vbench, "VIDEO_SCORER", "run_evaluation.py")],
)
def test_a_run_that_no_program_can_score_is_refused_before_it_begins(
    metric: Any, variable: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    told = refusal(metric("uint8").check_labels, {0: "a cat"}, error=ValueError)
    assert told.startswith(
        f"{variable} is not set, but MLCommons' {name} computes the score: export {variable}="
    )
    assert "uint8" in refusal(metric, "float32", error=ValueError)
    assert {"clip-fid", "vbench"} <= {*registry.BY_PROGRAM}


def test_images_that_do_not_fit_on_the_disk_are_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, "IMAGE_SCORER", SCRIPTS / "accuracy_coco.py")
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=10_000_000))
    ClipFid("uint8").check_labels({0: "a cat"})
    told = refusal(
        ClipFid("uint8").check_labels, dict.fromkeys(range(2), "a cat"), error=ValueError
    )
    assert told.startswith("scoring 2 images writes 12.6 MB into ")
    assert told.endswith("which has 10.0 MB free: set TMPDIR to a folder on a larger disk")
