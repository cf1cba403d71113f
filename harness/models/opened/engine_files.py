"""Writes the manifest lines for the files of token engines and speech engines. Reads the facts that the files record, and
does not start the engine.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.formats import gguf
from harness.errors import ConfigError


class Facts(NamedTuple):
    """The known values of the manifest's section `generation`."""

    context: int | None
    """The most tokens that the model allows in a prompt and its answer together; None if the file does not record it."""
    vocabulary: int | None
    end: tuple[int, ...]
    """The tokens that end an answer; () if the file records none."""


def lines(path: Path, kind: str) -> Iterator[str]:
    """Yields the manifest lines that follow `files`. kind: one of FORMATS. Raises ConfigError if the file or folder cannot
    be read.
    """
    if kind in _OF_SPEECH:
        yield from _SPEECH_LINES
        return
    found = _READERS[kind](path)
    most = found.vocabulary or _VOCABULARY
    known = found._replace(end=tuple(token for token in found.end if token < most))
    yield from generation_lines(known, of_engine=True)


def _of_gguf(path: Path) -> Facts:
    try:
        content = gguf.read(path)
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path}: {e}") from e
    values = content.values
    name = values.get("general.architecture")
    vocabulary = _whole(values.get(f"{name}.vocab_size"))
    ends = (_whole(values.get(f"tokenizer.ggml.{one}_token_id")) for one in ("eos", "eot", "eom"))
    return Facts(
        context=_whole(values.get(f"{name}.context_length")),
        vocabulary=vocabulary or content.lengths.get("tokenizer.ggml.tokens"),
        end=tuple(sorted({token for token in ends if token is not None})),
    )


def _of_genai(path: Path) -> Facts:
    model = _json(path / "genai_config.json").get("model")
    about = model if isinstance(model, dict) else {}
    return Facts(_whole(about.get("context_length")), _whole(about.get("vocab_size")), _ends(about))


_CONTEXTS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
"""Names of the context in the configurations of different architectures."""


def _of_openvino(path: Path) -> Facts:
    whole = _json(path / "config.json")
    # A model that also reads images keeps the values of its language model in a section.
    text = whole.get("text_config")
    about = {**whole, **text} if isinstance(text, dict) else whole
    lengths = (_whole(about.get(name)) for name in _CONTEXTS)
    return Facts(
        next((length for length in lengths if length is not None), None),
        _whole(about.get("vocab_size")),
        _ends(_json(path / "generation_config.json")) or _ends(about),
    )


_READERS: Mapping[str, Callable[[Path], Facts]] = {
    "gguf": _of_gguf,
    "genai": _of_genai,
    "openvino-genai": _of_openvino,
}
"""Maps the format of a token engine's files to the function that reads them."""

_OF_SPEECH = ("genai-whisper", "openvino-whisper")
FORMATS = (*_READERS, *_OF_SPEECH)

_SPEECH_LINES = (
    "inputs: # 30 s of audio",
    "  - {name: audio, dtype: float32, shape: [batch, 480000], preprocess: [audio: {rate: 16000, max_seconds: 30}]}",
    "outputs: [{name: text}]",
    "transcription:",
    "  language: en # drop this line for an English-only model",
    "  max_tokens: 200",
    "dataset: librispeech # pass its folder with --data-dir",
    "# accuracy: {metric: wer, target: 5}",
    "max_batch: 1",
)


def _json(path: Path) -> Mapping[str, Any]:
    """Returns the object in the file; {} if the folder has no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path} cannot be read ({e}): export the model again") from None
    return content if isinstance(content, dict) else {}


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _ends(about: Mapping[str, Any]) -> tuple[int, ...]:
    value = about.get("eos_token_id")
    tokens = map(_whole, value if isinstance(value, list) else [value])
    return tuple(token for token in tokens if token is not None)


CONTEXT = 512
"""The value that `init` writes for a context that the file does not record."""

MOST_CONTEXT = 4096
"""The largest context that `init` writes, because the engines reserve memory for the whole context of each sequence."""

_VOCABULARY = 32_000


def generation_lines(found: Facts, *, of_engine: bool) -> Iterator[str]:
    """Yields the manifest lines that follow `files`. of_engine: whether a token engine reads the file; otherwise, the file
    computes one step.
    """
    yield (
        "# The engine keeps the cache and chooses the tokens; the harness passes prompts to it as token ids."
        if of_engine
        else "# The file computes one token at a time, with a cache that grows; the harness generates answers with it."
    )
    yield "inputs: [{name: prompt, dtype: string, shape: [batch]}]"
    yield "outputs: [{name: tokens}]"
    yield "generation:"
    yield f"  context: {_context(found.context)}"
    guess = " # a guess, because the file does not record it: fill in the number of tokens"
    # The manifest refuses an empty vocabulary.
    yield f"  vocabulary: {found.vocabulary or f'{_VOCABULARY}{guess}'}"
    yield (
        f"  end: [{', '.join(map(str, found.end))}] # the tokens that end an answer"
        if found.end
        else "  # end: [2] # the tokens that end an answer; without this line answers have max_tokens tokens"
    )
    yield "  max_tokens: 32"
    yield "dataset: synthetic-prompts"
    yield "# slo: p99=1s"
    yield "max_batch: 8 # prompts that are processed at once"


def _context(most: int | None) -> str:
    about = "the maximum number of tokens in a prompt and its answer"
    if most is None or most < 2:  # the manifest refuses a context without room for an answer
        return f"{CONTEXT} # a guess: {about}, as the model card states"
    if most > MOST_CONTEXT:
        return f"{MOST_CONTEXT} # {about}; the model allows {most:,}, which needs more memory"
    return f"{most} # {about}"
