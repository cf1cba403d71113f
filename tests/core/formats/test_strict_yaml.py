"""Every YAML file has exactly one meaning, or is refused in one line."""

from itertools import product
from pathlib import Path

import pytest
import yaml

from harness.core.formats.strict_yaml import load_yaml, write_yaml
from harness.errors import ConfigError


def refusal(folder: Path, text: str) -> str:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_yaml(path)
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("word", "readings"),
    [
        ("0310", "200 or 310: write 200 or 310"),
        ("-010", "-8 or -10: write -8 or -10"),
        ("0x20", "32 or the string '0x20': write 32 or '0x20'"),
        ("0b11", "3 or the string '0b11': write 3 or '0b11'"),
        ("1_000", "1000 or the string '1_000': write 1000 or '1_000'"),
        ("5:00", "300 or the string '5:00': write 300 or '5:00'"),
        ("1:30.5", "90.5 or the string '1:30.5': write 90.5 or '1:30.5'"),
        ("1_0.5", "10.5 or the string '1_0.5': write 10.5 or '1_0.5'"),
        ("no", "false or the string 'no': write false or 'no'"),
        ("On", "true or the string 'On': write true or 'On'"),
        ("~", "null or the string '~': write null or '~'"),
        ("1e3", "1000 or the string '1e3': write 1000 or '1e3'"),
        ("-1.5E3", "-1500 or the string '-1.5E3': write -1500 or '-1.5E3'"),
        ("1e23", "1.0e+23 or the string '1e23': write 1.0e+23 or '1e23'"),
        ("5e-7", "5.0e-07 or the string '5e-7': write 5.0e-07 or '5e-7'"),
        ("+.5", "0.5 or the string '+.5': write 0.5 or '+.5'"),
        ("0o17", "15 or the string '0o17': write 15 or '0o17'"),
        ("08", "8 or the string '08': write 8 or '08'"),
    ],
)
def test_a_word_with_two_readings_is_refused_with_both(
    word: str, readings: str, tmp_path: Path
) -> None:
    expected = f"{word} can mean {readings}"
    assert refusal(tmp_path, f"a: 1\nb: {word}\n") == f" line 2: {expected}"
    assert refusal(tmp_path, f"a: [x, {word}]\n") == f" line 1: {expected}"
    assert refusal(tmp_path, f"{word}: 1\n") == f" line 1: {expected}"


@pytest.mark.parametrize("word", [".inf", "-.INF", ".nan", "1.0e+999", "1" * 400 + ".0"])
def test_a_number_that_is_not_finite_is_refused(word: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, f"a: {word}\n") == (
        f" line 1: {word[:40]} is not a finite number: write one, or quote the text"
    )


@pytest.mark.parametrize("text", ["a:\n", "a: # none\n", "- x\n-\n", "{a: }"])
def test_an_absent_value_is_refused(text: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, text).endswith("the value is missing: write one, or remove the line")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-01-01", "2024-01-01"),
        ("2024-13-45", "2024-13-45"),
        ("<<", "<<"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("1e3x", "1e3x"),
        ("'0310'", "0310"),
        ("'no'", "no"),
        ("null", None),
        ("True", True),
        ("+5", 5),
        (".5", 0.5),
        ("1.5e-3", 0.0015),
    ],
)
def test_a_word_with_one_reading_is_read(text: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"a: {text}\n")
    assert load_yaml(path) == {"a": value}


TAGS = (
    *("!", "!x", "!!python/object:os.system", "!!int", "!!float", "!!bool", "!!null"),
    *("!!timestamp", "!!binary", "!!set", "!!omap", "!!pairs", "!!str", "!!map", "!!seq"),
)
GARBAGE = ("''", "'-'", "+", "maybe", "x", "2024-13-45", "[1]", "{a: 1}")


@pytest.mark.parametrize(("tag", "value"), list(product(TAGS, GARBAGE)))
def test_a_tag_is_refused_whatever_it_holds(tag: str, value: str, tmp_path: Path) -> None:
    line = refusal(tmp_path, f"seed: {tag} {value}\n")
    assert line.startswith(" line 1: tags such as '!")
    assert line.endswith(" are not allowed here: write the value alone")


def test_a_repeated_key_and_an_alias_name_their_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a: 1\nb: {x: 1, x: 2}\n") == " line 2: the key 'x' appears twice"
    assert refusal(tmp_path, "a: &a 1\nb: *a\n") == " line 2: aliases are not allowed here"


def test_texts_with_two_readings_are_quoted_when_written(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    words = ["0310", "0x20", "no", "~", "5:00", "2024-01-01", "", ".inf", "<<", "=", "null"]
    words += ["1e3", "+.5", "0o17", "08"]
    content = {"texts": words, "numbers": [0, -1, 1e-05, 1e20, 0.5], "flags": [True, None]}
    write_yaml(path, content)
    assert load_yaml(path) == content == yaml.safe_load(path.read_text())
