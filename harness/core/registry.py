"""Finds plug-ins by name, and imports the plug-in that the user chose.

A plug-in's name is one of four kinds: a name in the tables below, an entry point in the group `harness.<kind>s`,
`package.module:Class`, or `path/to/file.py:Class`. A plug-in is imported only after the user has named it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from harness.core.extras import how_to_install
from harness.errors import ConfigError, HarnessError, PluginUnavailable, type_and_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Entry(NamedTuple):
    """A plug-in that has a short name."""

    target: str
    """Location of the plug-in, as 'module:attribute'."""
    about: str
    """Description that `list` and `--help` show."""
    extra: str = ""
    """The harness's extra that installs what the plug-in requires."""
    needs: str = ""
    """The module that the extra installs. If the outer package is a namespace package without code, `needs` is a dotted
    name.
    """
    model: str = ""
    """The model that a backend runs if --model is not set; '' stands for the common default."""

    @property
    def installed(self) -> bool:
        """Returns whether the required module is installed. A folder without code, such as the checkout's datasets/,
        does not count as a module.
        """
        if not self.needs:
            return True
        try:
            spec = importlib.util.find_spec(self.needs)
        except ModuleNotFoundError:  # the package that would contain the module is missing
            return False
        return spec is not None and spec.origin is not None


def _table(package: str, rows: Mapping[str, tuple[str, ...]]) -> dict[str, Entry]:
    """Returns a table of entries.

    rows: maps a plug-in's name to its class, in the module with the same name, followed by the other fields of `Entry`.
    """
    table = {}
    for name, (attribute, *more) in rows.items():
        # Python's standard library has a module named csv.
        module = "csv_table" if name == "csv" else name.replace("-", "_")
        table[name] = Entry(f"harness.{package}.{module}:{attribute}", *more)
    return table


BACKENDS = _table(
    "backends",
    {
        "ort": ("OrtBackend", "ONNX Runtime", "ort", "onnxruntime"),
        "tensorflow": ("TensorFlowBackend", "TensorFlow", "tensorflow", "tensorflow"),
        "openvino": ("OpenVinoBackend", "OpenVINO", "openvino", "openvino"),
        "litert": ("LiteRtBackend", "LiteRT", "litert", "ai_edge_litert"),
        "torch": ("TorchBackend", "PyTorch", "torch", "torch"),
        "executorch": ("ExecuTorchBackend", "ExecuTorch", "executorch", "executorch.runtime"),
        "trees": (
            "TreesBackend",
            "boosted trees and forests: XGBoost, LightGBM, treelite",
            "trees",
            "treelite",
            "digits-trees",
        ),
        "ncnn": ("NcnnBackend", "ncnn", "ncnn", "ncnn"),
        "mnn": ("MnnBackend", "MNN", "mnn", "MNN"),
        "tract": ("TractBackend", "tract", "tract", "tract"),
        "kserve": (
            "KserveRemote",
            "a server with the KServe v2 protocol: Triton, MLServer, KServe",
        ),
        "openai": (
            "OpenAiRemote",
            "a language model on a server with OpenAI's API: vLLM and others",
        ),
        "http-raw": ("HttpRawRemote", "a server that receives and returns bare bytes"),
        "http-json": (
            "HttpJsonRemote",
            "a service with any JSON format: FastAPI, TF Serving and others",
        ),
        "null": ("NullBackend", "answers at once: measures the harness itself"),
    },
) | _table(
    "backends.engines",
    {
        "ort-genai": (
            "OrtGenaiBackend",
            "language models on ONNX Runtime GenAI",
            "ort-genai",
            "onnxruntime_genai",
            "tinylm",
        ),
        "openvino-genai": (
            "OpenVinoGenaiBackend",
            "language models on OpenVINO GenAI",
            "openvino-genai",
            "openvino_genai",
            "tinylm",
        ),
        "llama-cpp": (
            "LlamaCppBackend",
            "language models on llama.cpp",
            "llama-cpp",
            "xllamacpp",
            "tinylm",
        ),
        "ort-whisper": (
            "OrtWhisperBackend",
            "Whisper on ONNX Runtime GenAI",
            "ort-genai",
            "onnxruntime_genai",
            "whisper",
        ),
        "openvino-whisper": (
            "OpenVinoWhisperBackend",
            "Whisper on OpenVINO GenAI",
            "openvino-genai",
            "openvino_genai",
            "whisper",
        ),
    },
)
REMOTE_BACKENDS = ("kserve", "openai", "http-raw", "http-json")
"""Backends that send requests to the server in --url."""

OF_ONE_THREAD = ("tract",)
"""Backends whose instances compute on one thread each, regardless of --threads."""

WITH_FIXED_THREADS = ("tensorflow",)
"""Backends whose number of threads cannot change within a process."""

DATASETS = (
    _table(
        "datasets",
        {
            "digits": ("DigitsDataset", "500 handwritten digits, embedded"),
            "synthetic": ("SyntheticDataset", "seeded noise in the model's input shapes"),
            "folder": ("FolderDataset", "images in one sub-folder per class, or labels.csv"),
            "imagenet": ("ImagenetDataset", "ImageNet validation set with val_map.txt"),
            "coco": ("CocoDataset", "COCO images and annotations for detection"),
            "npz": ("NpzDataset", "NumPy arrays with the names of the inputs, and labels"),
            "csv": ("CsvDataset", "a table of numbers with a label column"),
            "parquet": (
                "ParquetDataset",
                "a Parquet file with a label column",
                "parquet",
                "pyarrow",
            ),
            "librispeech": ("LibrispeechDataset", "speech in WAV or FLAC, with transcripts"),
            "voice-activity": (
                "VoiceActivityDataset",
                "sequences with a synthetic voice, labelled as speech or not per frame",
            ),
            "huggingface": (
                "HuggingFaceDataset",
                "a Hugging Face dataset, saved to disk or hf:NAME",
                "hf",
                "datasets",
            ),
            "file-types": (
                "FileTypesDataset",
                "files of this Python installation, by type, for the model magika",
            ),
            "kits": ("KitsDataset", "preprocessed volumes, one folder of .npy files per case"),
            "text-lines": (
                "TextLinesDataset",
                "drawn lines of random words and numbers, generated",
            ),
            "tones": ("TonesDataset", "tones and chords with known notes, generated"),
        },
    )
    | _table(
        "datasets.text",
        {
            "squad": ("SquadDataset", "SQuAD v1.1, as in MLPerf's BERT", "text", "tokenizers"),
            "digit-strings": ("DigitStringsDataset", "500 prompts for the model tinylm, embedded"),
            "prompts": ("PromptsDataset", "prompts for language models, one JSON object per line"),
            "conversations": (
                "ConversationsDataset",
                "chats with several turns, from ShareGPT or as messages",
            ),
            "sessions": ("SessionsDataset", "agent sessions with turns, delays and subagents"),
            "synthetic-prompts": (
                "SyntheticPromptsDataset",
                "prompts with given lengths and a common prefix",
            ),
            "synthetic-chats": (
                "SyntheticChatsDataset",
                "chats with images, sound and text of given sizes, generated",
            ),
            "trace": ("TraceDataset", "recorded traffic: Mooncake, BurstGPT, Azure"),
        },
    )
    | _table(
        "datasets.mlperf",
        {
            "igbh": ("IgbhDataset", "papers of the Illinois Graph Benchmark, as in MLPerf's R-GAT"),
            "streaming-100b": (
                "Streaming100bDataset",
                "requests by timestamp, as in MLPerf's DLRM-v3",
            ),
            "frames": ("FramesDataset", "FRAMES questions, as in MLPerf's e2e-rag-qna"),
            "documents": ("DocumentsDataset", "web pages, as in MLPerf's e2e-rag-db"),
            "captions": (
                "CaptionsDataset",
                "descriptions of images or videos to generate: .tsv, .txt",
            ),
            "product-catalogue": (
                "ProductCatalogueDataset",
                "products with pictures, as in MLPerf's Qwen3-VL",
                "parquet",
                "pyarrow",
            ),
            "function-calls": (
                "FunctionCallsDataset",
                "BFCL's single turns, as in MLPerf's edge agent",
            ),
        },
    )
)
METRICS = _table(
    "accuracy",
    {
        "top1": ("Top1", "share of correct labels, in percent"),
        "top5": ("Top5", "share of samples with the correct label in the top five"),
        "map": (
            "MeanAveragePrecision",
            "COCO mean average precision of boxes",
            "coco",
            "pycocotools",
        ),
        "squad_f1": ("SquadF1", "SQuAD F1 and exact match for spans"),
        "dice": ("Dice", "Dice coefficient of segmented volumes or images"),
        "wer": ("WordErrorRate", "word error rate of transcripts"),
        "wer-whisper": (
            "WhisperWordErrorRate",
            "wer after Whisper's normaliser, MLPerf's score",
            "wer",
            "whisper_normalizer",
        ),
        "cer": ("CharacterErrorRate", "character error rate of texts"),
        "note_f1": ("NoteF1", "F1 of transcribed notes, onsets within 50 ms"),
        "rouge": ("Rouge", "ROUGE of texts, 1, 2, L, Lsum", "rouge", "rouge_score"),
        "exact_match": ("ExactMatch", "share of texts that match exactly"),
        "auc": ("AreaUnderCurve", "area under the ROC curve, of scores per sample or frame"),
        "rmse": ("Rmse", "root mean square error of numbers"),
        "cosine": ("Cosine", "similarity to the correct embeddings"),
        "retrieval": ("Retrieval", "recall at 10 by embeddings"),
    },
) | _table(
    "accuracy.mlperf",
    {
        "recommendation": ("Recommendation", "AUC per request, normalised entropy and accuracy"),
        "rag_answers": (
            "RagAnswers",
            "share of answers that a judge accepts, by MLCommons' program",
        ),
        "ingestion": ("Ingestion", "share of pages in a database, as in MLPerf's e2e-rag-db"),
        "category-f1": (
            "CategoryF1",
            "hierarchical F1 of product categories, as in MLPerf's Qwen3-VL",
        ),
        "function-calls": ("FunctionCalls", "share of correct function calls, as in BFCL"),
        "clip-fid": ("ClipFid", "CLIP score and FID of images, by MLCommons' script"),
        "vbench": ("Vbench", "six dimensions of videos, by MLCommons' script"),
        "reasoned-answers": (
            "ReasonedAnswers",
            "share of correct answers of a reasoning model, by MLCommons' script",
        ),
    },
)
BY_PROGRAM = ("rag_answers", "ingestion", "clip-fid", "vbench", "reasoned-answers")
"""Metrics that may run a program that the user provides. `check` does not run this program, and uses the stored score
instead.
"""

METERS = _table(
    "machine.power.meters",
    {
        "rapl": ("RaplMeter", "energy counters of the processor"),
        "hwmon": ("HwmonMeter", "power and energy sensors of boards, sockets and supplies"),
        "nvml": ("NvmlMeter", "NVIDIA GPUs", "nvml", "pynvml"),
        "estimate": ("EstimateMeter", "busy CPU time x watts: estimated, never measured"),
        "command": ("CommandMeter", "a program that prints watts or joules"),
        "page": (
            "PageMeter",
            "watts or joules on a Prometheus metrics page, e.g. from DCGM on the server",
        ),
        "ptdaemon": ("PtdaemonMeter", "MLPerf Power's client and server, at the wall"),
    },
)
SCENARIOS = _table(
    "scenarios",
    {
        "single-stream": ("SINGLE_STREAM", "one query at a time"),
        "multi-stream": ("MULTI_STREAM", "8 samples at a time"),
        "server": ("SERVER", "Poisson arrivals at --target-qps"),
        "offline": ("OFFLINE", "all samples at once"),
    },
)
BENCHMARKS = (
    _table(
        "machine.characterise.arithmetic",
        {
            "gemm": ("Gemm", "products of square matrices, by library and precision"),
            "convolution": ("Convolution", "a 3x3 convolution, by library and precision"),
            "reduction": ("Reduction", "sums of segments: as a matrix product, and native"),
            "scan": ("Scan", "prefix sums of segments: as matrix products, and native"),
        },
    )
    | _table(
        "machine.characterise.movement",
        {
            "memory-copy": ("MemoryCopy", "a copy in memory, by size, warm and evicted"),
            "first-touch": (
                "FirstTouch",
                "the first write to new pages, compared with later writes",
            ),
            "transport": ("Transport", "the round trip of a payload, by transport"),
            "input-handling": (
                "InputHandling",
                "a model's input, copied and bound",
                "ort",
                "onnxruntime",
            ),
            "dataset-batch": ("DatasetBatch", "a batch gathered from a dataset's samples"),
        },
    )
    | _table(
        "machine.characterise.gpu",
        {
            "gpu-gemm": (
                "GpuGemm",
                "products of square matrices on a GPU, by precision",
                "torch",
                "torch",
            ),
            "gpu-copy": (
                "GpuCopy",
                "copies between host and GPU, and within it, by size",
                "torch",
                "torch",
            ),
        },
    )
)
KINDS: Mapping[str, Mapping[str, Entry]] = {
    "backend": BACKENDS,
    "dataset": DATASETS,
    "metric": METRICS,
    "scenario": SCENARIOS,
    "meter": METERS,
    "benchmark": BENCHMARKS,
}


DEFAULT_MODEL = "digits"


def default_model(backend: str) -> str:
    """Returns the model that a backend runs if --model is not set."""
    entry = BACKENDS.get(backend)
    return (entry.model if entry is not None else "") or DEFAULT_MODEL


def is_code(name: str) -> bool:
    """Returns whether the name refers to code (module:Class or file.py:Class) instead of an installed plug-in."""
    return ":" in name


def is_foreign(kind: str, name: str) -> bool:
    """Returns whether the plug-in is a file, module or entry point that is not part of the harness."""
    return name not in KINDS[kind]


def short_name(name: str) -> str:
    """Returns the name for display, without the folder of the plug-in's file, such as nearest.py:Nearest."""
    path, separator, attribute = name.rpartition(".py:")
    return f"{Path(path).name}.py:{attribute}" if separator else name


def check_name(kind: str, name: str) -> None:
    """Raises a ConfigError if a plug-in of this kind cannot have this name. Does not import anything."""
    if ":" in name:
        module, _, attribute = name.rpartition(":")
        dotted = all(part.isidentifier() for part in module.split("."))
        if not attribute.isidentifier() or not (dotted or module.endswith(".py")):
            raise ConfigError(f"{kind} {name!r} is not module:Class or file.py:Class")
        if module.endswith(".py") and not Path(module).is_file():
            raise ConfigError(f"{kind} {name!r}: the file {module} does not exist")
        if module.endswith(".py") and _certainly_lacks(Path(module), attribute):
            raise ConfigError(f"{kind} {name!r}: {module} has no class {attribute}")
        return
    if name in KINDS[kind] or name in _entry_points(kind):
        return
    if name.endswith(".py"):
        raise ConfigError(f"{kind} {name!r} does not name a class: write {name}:Class")
    known = [*KINDS[kind], *_entry_points(kind)]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
    raise ConfigError(f"no {kind} named {name!r}: {hint}")


def _certainly_lacks(path: Path, name: str) -> bool:
    """Returns whether the file cannot define the name, because the file neither contains the name nor defines names
    dynamically.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    return not any(word in text for word in (name, "import *", "globals(", "__getattr__"))


def load(kind: str, name: str) -> Any:
    """Imports the plug-in, and returns its class or, for a scenario, an object."""
    check_name(kind, name)
    entry = KINDS[kind].get(name)
    try:
        if entry is not None:
            return _import(entry.target)
        if ":" in name:
            return _import(name)
        return _entry_points(kind)[name].load()
    except ModuleNotFoundError as e:
        raise _unavailable(kind, name, entry, e) from e
    except Exception as e:
        if entry is not None and not isinstance(e, ImportError):
            raise  # a bug in the harness
        is_clear = isinstance(e, ImportError | AttributeError | SyntaxError)
        why = str(e) if is_clear else f"{type(e).__name__}: {e}"
        raise PluginUnavailable(f"{kind} {name!r} cannot be imported: {why}") from e


def _import(target: str) -> Any:
    name, _, attribute = target.rpartition(":")
    is_file = name.endswith(".py")
    module = _import_file(Path(name)) if is_file else importlib.import_module(name)
    if not hasattr(module, attribute):
        raise ImportError(f"{name} has no class {attribute}")
    return getattr(module, attribute)


def load_function(path: Path, name: str) -> Any:
    """Runs a user's Python file, and returns its attribute `name`."""
    try:
        module = _import_file(path)
    except (Exception, SystemExit) as e:
        raise PluginUnavailable(
            f"{path}: {name} cannot be imported: {type(e).__name__}: {e}"
        ) from e
    if not hasattr(module, name):
        raise PluginUnavailable(f"{path} has no function {name}")
    return getattr(module, name)


def _import_file(path: Path) -> Any:
    name = f"harness_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # `@dataclass` looks up its module while the module executes
    spec.loader.exec_module(module)
    return module


def _unavailable(
    kind: str, name: str, entry: Entry | None, error: ModuleNotFoundError
) -> PluginUnavailable:
    if entry is not None and error.name and error.name.startswith("harness."):
        raise error  # a bug in the harness, not a missing dependency
    if entry is not None and entry.extra:
        return missing_extra(kind, name, entry)
    return PluginUnavailable(
        f"{kind} {name!r} needs the module {error.name!r}: install it into this environment"
    )


def missing_extras(named: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Yields the requirements that plug-ins lack, without importing the plug-ins. named: pairs of a kind and a name; a
    name of None stands for no plug-in.
    """
    for kind, name in named:
        entry = KINDS[kind].get(name or "")
        if name is not None and entry is not None and not entry.installed:
            yield str(missing_extra(kind, name, entry))


def missing_extra(kind: str, name: str, entry: Entry) -> PluginUnavailable:
    return PluginUnavailable(
        f"{kind} {name!r} needs the module {entry.needs!r}: {how_to_install(entry.extra)}"
    )


def _entry_points(kind: str) -> "dict[str, EntryPoint]":
    # This import is delayed, because it takes a fifth of the time that --help needs.
    from importlib.metadata import entry_points

    return {e.name: e for e in entry_points(group=f"harness.{kind}s")}


def rows(kind: str) -> Iterator[tuple[str, Entry]]:
    """Yields the name and the entry of every plug-in, including plug-ins from other packages."""
    yield from KINDS[kind].items()
    for name, point in _entry_points(kind).items():
        yield name, Entry(point.value, f"from {point.dist.name if point.dist else 'entry point'}")


@contextmanager
def plugin(name: str) -> Iterator[None]:
    """Converts any exception from a plug-in, except a HarnessError, to a PluginUnavailable whose cause is that
    exception.
    """
    try:
        yield
    except HarnessError:
        raise
    except MemoryError as e:
        # NumPy's message contains the array's size, but  Python's message is empty.
        size = f": {e}" if str(e) else ""
        raise PluginUnavailable(f"{name} ran out of memory{size}") from e
    except (Exception, SystemExit, KeyboardInterrupt) as e:
        raise PluginUnavailable(f"{name} raised {type_and_text(e)}") from e


T = TypeVar("T")


def entered(name: str, backend: T | None) -> T:
    """Returns the result of the backend's __enter__. Raises a PluginUnavailable if the result is None."""
    if backend is None:
        raise PluginUnavailable(
            f"backend {name!r}: __enter__() returned None: end it with `return self`"
        )
    return backend
