"""Provides files of known types for Google's model magika, which reads the first and last bytes of a file.

The files belong to the Python installation, so that real data exist on every machine (see parts/interpreter_files.py).
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from harness.datasets.parts.interpreter_files import TypedFile, found
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import (
    needs_inputs,
    refuse,
    refuse_data_dir,
    synthetic_options,
)
from harness.errors import ConfigError
from harness.types import Array, ClassName, Dataset, DatasetSetup, show_shape

BEGIN_BYTES = END_BYTES = 1024
BLOCK_BYTES = 4096
PADDING = 256
"""Sizes and padding, from config.min.json of the model standard_v3_3 in the package magika 1.0.3."""

LABELS = tuple(
    """
    3gp ace ai aidl apk applebplist appleplist asm asp autohotkey autoit awk batch bazel bib bmp bzip c cab
    cat chm clojure cmake cobol coff coffeescript cpp crt crx cs csproj css csv dart deb dex dicom diff dm dmg
    doc dockerfile docx dsstore dwg dxf elf elixir emf eml epub erb erlang flac flv fortran gemfile gemspec
    gif gitattributes gitmodules go gradle groovy gzip h5 handlebars haskell hcl hlp htaccess html icns ico
    ics ignorefile ini internetshortcut ipynb iso jar java javabytecode javascript jinja jp2 jpeg json jsonl
    julia kotlin latex lha lisp lnk lua m3u m4 macho makefile markdown matlab mht midi mkv mp3 mp4 mscompress
    msi mum npy npz nupkg objectivec ocaml odp ods odt ogg one onnx otf outlook parquet pascal pcap pdb pdf
    pebin pem perl php pickle png po postscript powershell ppt pptx prolog proteindb proto psd python
    pythonbytecode pytorch qt r randombytes randomtxt rar rdf rpm rst rtf ruby rust scala scss sevenzip sgml
    shell smali snap solidity sql sqlite squashfs srt stlbinary stltext sum svg swf swift tar tcl textproto
    tga thumbsdb tiff toml torrent tsv ttf twig txt typescript vba vcxproj verilog vhdl vtt vue wasm wav webm
    webp winregistry wmf woff woff2 xar xls xlsb xlsx xml xpi xz yaml yara zig zip zlibstream
    """.split()  # noqa: SIM905 - a list would take 214 lines
)
"""The model's classes in order, from `target_labels_space` in the same file."""

MOST = 32
"""Maximum number of files per type. Every fourth file is reserved for quantisation."""


class FileTypesDataset(LoadedRows):
    """Up to 24 files of each type. A sample is int32 (2048,): the first and the last 1,024 bytes of a file, without
    white space at the two ends.
    """

    name = "file-types"

    def __init__(self, setup: DatasetSetup) -> None:
        refuse_data_dir(setup, self.name)
        refuse([*synthetic_options(setup, self.name, shapes=setup.shapes)])
        self._setup = setup
        self._input = _bytes_input(setup)
        self._files = self._choose(found(LABELS, MOST))
        super().__init__(len(self._files))

    def _choose(self, files: Mapping[str, Sequence[TypedFile]]) -> Sequence[TypedFile]:
        return [f for one in files.values() for i, f in enumerate(one) if i % 4 != 3]

    def load(self, indices: Sequence[int]) -> None:
        self.hold(indices, {self._input: self._rows[np.asarray(indices)]})

    def label(self, index: int) -> object:
        label = self._files[index].label
        return ClassName(label, LABELS.index(label))

    def class_names(self) -> Mapping[int, str]:
        return {LABELS.index(file.label): file.label for file in self._files}

    def calibration(self) -> Dataset:
        return FileTypesCalibration(self._setup)

    def describe(self) -> Mapping[str, object]:
        labels = "\n".join(file.label for file in self._files)
        return {
            "name": self.name,
            "count": len(self),
            "source": "files of this Python and of numpy, and archives and tables of them",
            "types": len(self.class_names()),
            "digest": hashlib.sha256(labels.encode() + self._rows.tobytes()).hexdigest(),
        }

    @cached_property
    def _rows(self) -> Array:
        """Returns the samples, (files, 2048), which take about 4 MB."""
        return np.stack([features(file.content()) for file in self._files])


class FileTypesCalibration(FileTypesDataset):
    """Other files of the same types for quantisation. The files are never scored."""

    name = "file-types, other files"

    def _choose(self, files: Mapping[str, Sequence[TypedFile]]) -> Sequence[TypedFile]:
        return [file for one in files.values() for file in one[3::4]]


def features(content: bytes) -> Array:
    """Returns the (2048,) numbers for a file, computed as in the package magika. Positions without a byte contain 256."""
    row = np.full(BEGIN_BYTES + END_BYTES, PADDING, np.int32)
    begin = np.frombuffer(content[:BLOCK_BYTES].lstrip()[:BEGIN_BYTES], np.uint8)
    end = np.frombuffer(content[-BLOCK_BYTES:].rstrip()[-END_BYTES:], np.uint8)
    row[: len(begin)] = begin
    row[len(row) - len(end) :] = end
    return row


def _bytes_input(setup: DatasetSetup) -> str:
    """Returns the name of the model's only input. Raises a ConfigError for a model with different inputs."""
    if not setup.inputs:
        raise needs_inputs(FileTypesDataset.name)
    first = setup.inputs[0]
    if len(setup.inputs) != 1 or first.shape[1:] != (2048,) or first.dtype != "int32":
        inputs = ", ".join(f"{i.name} {i.dtype} {show_shape(i.shape)}" for i in setup.inputs)
        raise ConfigError(
            f"dataset 'file-types' has int32 samples of shape [2048], but the model takes {inputs}: choose a different "
            "--dataset, e.g. synthetic"
        )
    return first.name


_: type[Dataset] = FileTypesDataset
