"""A Whisper with random weights, one layer in the encoder and one in the decoder; inputs, outputs and files match the
real model's.

Each token is a word. The two folders hold the same network, one for ONNX Runtime GenAI and one for OpenVINO GenAI.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS = (
    *("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "while", "seven", "cats"),
    *("watch", "from", "under", "an", "old", "oak", "and", "rain", "falls", "on", "stone"),
)
SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>"),
    *("<|transcribe|>", "<|startofprev|>", "<|notimestamps|>"),
)
TOKENS = (*(f" {word}" for word in WORDS), *SPECIAL)
END = TOKENS.index("<|endoftext|>")
CONTEXT = 64

_MELS, _FRAMES, _PLACES = 80, 3000, 1500
_WIDTH, _HEADS = 32, 2
_HEAD = _WIDTH // _HEADS
_FLOAT, _INT64, _INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def write_genai(folder: Path) -> Path:
    """Writes a folder for ONNX Runtime GenAI, as its model builder does."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(_encoder("audio_features", "encoder_hidden_states", cross=True), folder / "encoder.onnx")  # fmt: skip
    onnx.save(_decoder(cross=True), folder / "decoder.onnx")
    sizes = {
        "head_size": _HEAD,
        "hidden_size": _WIDTH,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "num_hidden_layers": 1,
        "session_options": {"provider_options": []},
    }
    decoder = {
        "filename": "decoder.onnx",
        "inputs": {
            "input_ids": "input_ids",
            "past_key_names": "past_key_self_%d",
            "past_value_names": "past_value_self_%d",
            "cross_past_key_names": "past_key_cross_%d",
            "cross_past_value_names": "past_value_cross_%d",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present_key_self_%d",
            "present_value_names": "present_value_self_%d",
        },
    }
    encoder = {
        "filename": "encoder.onnx",
        "inputs": {"audio_features": "audio_features"},
        "outputs": {
            "encoder_hidden_states": "encoder_hidden_states",
            "cross_present_key_names": "present_key_cross_%d",
            "cross_present_value_names": "present_value_cross_%d",
        },
    }
    model = {
        "type": "whisper",
        "context_length": CONTEXT,
        "vocab_size": len(TOKENS),
        **{f"{name}_token_id": END for name in ("bos", "eos", "pad")},
        "encoder": {**sizes, **encoder},
        "decoder": {**sizes, **decoder},
    }
    search = {"max_length": CONTEXT, "do_sample": False, "past_present_share_buffer": False}
    _write(folder / "genai_config.json", {"model": model, "search": search})
    _write(folder / "audio_processor_config.json", {"feature_extraction": {"sequence": _sound()}})
    _write_tokens(folder)
    return folder


def _sound() -> list[Mapping[str, Any]]:
    window = np.hanning(401)[:400].tolist()
    stft = {"n_fft": 400, "frame_length": 400, "hop_length": 160, "_comment": window}
    mel = {"chunk_size": 30, "hop_length": 160, "n_fft": 400, "n_mel": _MELS}
    return [
        {"operation": {"name": "audio_decoder", "type": "AudioDecoder"}},
        {"operation": {"name": "STFT", "type": "STFTNorm", "attrs": stft}},
        {"operation": {"name": "log_mel_spectrogram", "type": "LogMelSpectrum", "attrs": mel}},
    ]


def _write_tokens(folder: Path) -> None:
    vocabulary = {f"Ġ{word}": token for token, word in enumerate(WORDS)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": TOKENS.index(text), "content": text, **flags, "special": True} for text in SPECIAL]  # fmt: skip
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}  # fmt: skip
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": bytes_,
        "post_processor": None,
        "decoder": bytes_,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    _write(folder / "tokenizer.json", tokenizer)
    _write(folder / "vocab.json", vocabulary)
    names = {f"{name}_token": SPECIAL[0] for name in ("bos", "eos", "pad", "unk")}
    about = {"tokenizer_class": "WhisperTokenizer", "model_max_length": 1024, **names}
    decoder = {str(one["id"]): {k: v for k, v in one.items() if k != "id"} for one in added}
    _write(folder / "tokenizer_config.json", {"added_tokens_decoder": decoder, **about})


def write_openvino(folder: Path) -> Path:
    """Writes a folder for OpenVINO GenAI, as Optimum Intel does: the decoder keeps its cache as variables."""
    import openvino as ov

    folder.mkdir(parents=True, exist_ok=True)
    core = ov.Core()
    encoder = _encoder("input_features", "last_hidden_state", cross=False)
    parts = {
        "encoder_model": core.read_model(encoder.SerializeToString()),
        "decoder_model": _stateful(core.read_model(_decoder(cross=False).SerializeToString())),
        "detokenizer": _detokenizer(),
    }
    for name, model in parts.items():
        ov.save_model(model, folder / f"openvino_{name}.xml", compress_to_fp16=False)
    _write(folder / "config.json", {"model_type": "whisper", "max_source_positions": _PLACES})
    features = {"feature_size": _MELS, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 400}
    chunk = {"chunk_length": 30, "n_samples": 480_000, "nb_max_frames": _FRAMES}
    _write(folder / "preprocessor_config.json", {**features, **chunk})
    ids = {text.strip("<|>"): TOKENS.index(text) for text in SPECIAL}
    generation = {
        "eos_token_id": END,
        "pad_token_id": END,
        "bos_token_id": END,
        "decoder_start_token_id": ids["startoftranscript"],
        "prev_sot_token_id": ids["startofprev"],
        "no_timestamps_token_id": ids["notimestamps"],
        "max_initial_timestamp_index": 50,
        "is_multilingual": True,
        "lang_to_id": {f"<|{name}|>": ids[name] for name in ("en", "de")},
        "task_to_id": {name: ids[name] for name in ("transcribe", "translate")},
        "begin_suppress_tokens": [],
        "suppress_tokens": [],
        "max_length": CONTEXT,
    }
    _write(folder / "generation_config.json", generation)
    return folder


def _stateful(model: Any) -> Any:
    """Replaces the keys and values that enter and leave the decoder with variables."""
    import openvino as ov
    from openvino import opset13 as ops

    beam = ops.parameter([-1], np.int32, name="beam_idx")
    beam.output(0).set_names({"beam_idx"})
    zero = ops.constant(np.array(0, np.int64))
    past = {p.friendly_name: p for p in model.get_parameters()}
    batch = ops.gather(ops.shape_of(past["input_ids"]), ops.constant(np.array([0])), zero)
    rest = ops.constant(np.array([_HEADS, 0, _HEAD], np.int64))
    sinks, results = [], []
    for result in model.get_results():
        name = next(iter(result.input_value(0).get_names()))
        if not name.startswith("present"):
            results.append(result)
            continue
        entry = past.pop(name.replace("present", "past"))
        start = ops.broadcast(ops.constant(np.array(0, np.float32)), ops.concat([batch, rest], 0))
        shape = ov.PartialShape([-1, _HEADS, -1, _HEAD])
        read = ops.read_value(start, name, ov.Type.f32, shape)
        entry.output(0).replace(ops.gather(read, beam, zero).output(0))
        sinks.append(ops.assign(result.input_value(0).get_node(), name))
    return ov.Model(results, sinks, [*past.values(), beam], "decoder")


def _detokenizer() -> Any:
    import openvino as ov
    from openvino_tokenizers.tokenizer_pipeline import (
        FuseStep,
        TokenizerPipeline,
        VocabDecoderStep,
    )
    from openvino_tokenizers.utils import change_inputs_type

    pipeline = TokenizerPipeline()
    skipped = [TOKENS.index(text) for text in SPECIAL]
    pipeline.vocab, pipeline.skip_tokens = [*TOKENS], skipped
    pipeline.add_steps([VocabDecoderStep([*TOKENS], skipped), FuseStep()])
    return change_inputs_type(pipeline.get_detokenizer_ov_subgraph(), ov.Type.i64)


class _Graph:
    """Collects the nodes of an ONNX graph; values are represented by their names."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def put(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        return self.put((self._draw.standard_normal(shape) * scale).astype(np.float32))

    def __call__(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def dense(self, x: str, size: int, out: str = "", bias: Any = None) -> str:
        product = self("MatMul", x, self.weight(_WIDTH, size, scale=_WIDTH**-0.5))
        values = np.zeros(size) if bias is None else bias
        return self("Add", product, self.put(np.asarray(values, np.float32)), out=out)

    def norm(self, x: str, out: str = "") -> str:
        ones = np.ones(_WIDTH, np.float32)
        return self("LayerNormalization", x, self.put(ones), self.put(0 * ones), out=out)

    def heads(self, x: str, out: str = "") -> str:
        split = self("Reshape", x, self.put([0, 0, _HEADS, _HEAD]))
        return self("Transpose", split, perm=[0, 2, 1, 3], out=out)

    def attend(self, query: str, seen: Sequence[str], sharp: float, bias: str = "") -> str:
        """Returns the attention output for the queries, keys and values. bias: added to the scores."""
        keys, values = seen
        turned = self("Transpose", keys, perm=[0, 1, 3, 2])
        scale = np.float32(sharp * _HEAD**-0.5)
        scores = self("Mul", self("MatMul", query, turned), self.put(scale))
        shares = self("Softmax", self("Add", scores, bias) if bias else scores, axis=-1)
        joined = self("Transpose", self("MatMul", shares, values), perm=[0, 2, 1, 3])
        return self.dense(self("Reshape", joined, self.put([0, 0, _WIDTH])), _WIDTH)

    def model(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        ends = [
            [
                helper.make_tensor_value_info(name, kind, shape)
                for name, (kind, shape) in side.items()
            ]
            for side in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "whisper", *ends, self.constants)
        opsets = [helper.make_opsetid("", 20)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _cross(graph: _Graph, states: str, out: Sequence[str] = ("", "")) -> list[str]:
    """Returns the keys and values for the encoder's states; both forms of the model use equal weights."""
    own = _Graph(3)
    own.nodes, own.constants = graph.nodes, graph.constants
    return [own.heads(own.dense(states, _WIDTH), out=name) for name in out]


def _encoder(features: str, states: str, *, cross: bool) -> Any:
    graph = _Graph(1)
    x = features
    for size, stride in ((_MELS, 1), (_WIDTH, 2)):
        kernel = graph.weight(_WIDTH, size, 3, scale=(3 * size) ** -0.5)
        convolved = graph("Conv", x, kernel, strides=[stride], pads=[1, 1], kernel_shape=[3])
        x = graph("Gelu", convolved)
    x = graph("Transpose", x, perm=[0, 2, 1])
    x = graph("Add", x, graph.weight(_PLACES, _WIDTH, scale=0.3))
    normal = graph.norm(x)
    parts = [graph.heads(graph.dense(normal, _WIDTH)) for _ in range(3)]
    x = graph("Add", x, graph.attend(parts[0], parts[1:], sharp=1.0))
    graph.norm(x, out=states)
    outputs = {states: (_FLOAT, ["batch", _PLACES, _WIDTH])}
    if cross:
        names = ("present_key_cross_0", "present_value_cross_0")
        _cross(graph, states, names)
        outputs |= dict.fromkeys(names, (_FLOAT, ["batch", _HEADS, _PLACES, _HEAD]))
    return graph.model({features: (_FLOAT, ["batch", _MELS, _FRAMES])}, outputs)


def _decoder(*, cross: bool) -> Any:
    """Returns the decoder. cross: the decoder takes keys and values computed from the encoder's states, instead of the
    states.
    """
    graph = _Graph(5)
    one, zero = graph.put(1), graph.put(0)
    past, present = (
        [f"{when}_{part}_self_0" for part in ("key", "value")] for when in ("past", "present")
    )
    known = graph("Gather", graph("Shape", past[0]), graph.put(2))
    new = graph("Gather", graph("Shape", "input_ids"), one)
    total = graph("Add", known, new)
    places = graph("Range", known, total, one)
    x = graph("Gather", graph.weight(len(TOKENS), _WIDTH), "input_ids")
    x = graph("Add", x, graph("Gather", graph.weight(CONTEXT, _WIDTH), places))
    columns = graph("Range", zero, total, one)
    seen = graph("LessOrEqual", columns, graph("Unsqueeze", places, graph.put([1])))
    bias = graph("Where", seen, graph.put(np.float32(0)), graph.put(np.float32(-1e9)))
    normal = graph.norm(x)
    query, key, value = (graph.heads(graph.dense(normal, _WIDTH)) for _ in range(3))
    both = [graph("Concat", *pair, axis=2, out=name) for *pair, name in zip(past, (key, value), present, strict=True)]  # fmt: skip
    x = graph("Add", x, graph.attend(query, both, sharp=1.0, bias=bias))
    asked = graph.heads(graph.dense(graph.norm(x), _WIDTH))
    given = ["past_key_cross_0", "past_value_cross_0"]
    pair = given if cross else _cross(graph, "encoder_hidden_states")
    x = graph("Add", x, graph.attend(asked, pair, sharp=8.0))
    up = graph("Gelu", graph.dense(graph.norm(x), _WIDTH))
    x = graph("Add", x, graph.dense(up, _WIDTH))
    never = np.array([0.0] * (len(WORDS) + 1) + [-1e4] * (len(SPECIAL) - 1))
    graph.dense(graph.norm(x), len(TOKENS), out="logits", bias=never)
    cache = (_FLOAT, ["batch", _HEADS, "past", _HEAD])
    heard: Mapping[str, Any] = (
        dict.fromkeys(given, (_FLOAT, ["batch", _HEADS, _PLACES, _HEAD]))
        if cross
        else {"encoder_hidden_states": (_FLOAT, ["batch", _PLACES, _WIDTH])}
    )
    ids = _INT32 if cross else _INT64
    inputs = {"input_ids": (ids, ["batch", "new"]), **dict.fromkeys(past, cache), **heard}
    logits = (_FLOAT, ["batch", "new", len(TOKENS)])
    grown = (_FLOAT, ["batch", _HEADS, "total", _HEAD])
    return graph.model(inputs, {"logits": logits, **dict.fromkeys(present, grown)})


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
