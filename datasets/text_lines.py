"""Draws lines of random words and numbers in Pillow's embedded font, for models that read text.

The font is Aileron Regular (CC0). A seed determines every line, so one version of Pillow draws the same images on every
machine. The label is the text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from harness.datasets.parts import sources
from harness.datasets.parts.image.images import ImageSteps
from harness.datasets.parts.prompts.options import Options
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import own_step, refuse_data_dir
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup, TensorSpec, show_shape

COUNT = 256
MOST = 100_000

_WORDS = """
about above after again almost always answer autumn between bridge building business captain change children clear
coffee company country danger december distance doctor during early east engine english evening every example family
father february figure finish fire follow forest friend garden general glass good great green ground group happen
harbour heart history hotel house hundred inside island january journey july june kitchen language large letter light
little london machine market measure member middle minute moment monday money morning mother mountain museum music
nature never night north notice november number october office often open orange order paper people picture place
plant point possible present problem question quick quiet railway reason record river round saturday school second
september seven shape simple silver south special spring station still stone street strong summer sunday system table
thank theatre thousand thursday today together travel tuesday under until village voice water wednesday west white
window winter wonder world yellow yesterday young zero
"""
WORDS = tuple(_WORDS.split())

HEIGHT = 48
"""Image height in pixels to which the distances below refer. The distances scale with the height of the image."""

MOST_BLUR_PIXELS = 3.5
"""Maximum radius of the blur in pixels. Without blur, a model would read every line correctly, and the score could not
reveal slight damage to the model.
"""

_SCORED, _CALIBRATION = 0, 1
"""Keys of two independent streams of random numbers."""

_LEAST_PIXELS = 8
"""Minimum size of the font in pixels."""


class Line(NamedTuple):
    """A line of text and its appearance."""

    text: str
    font_pixels: int
    left_pixels: int
    down_pixels: int
    """Distance from the middle of the image down to the middle of the text."""
    ink: tuple[int, int, int]
    paper: tuple[int, int, int]
    blur_pixels: float
    """Radius of a Gaussian blur in pixels."""


class TextLinesDataset(LoadedRows):
    """Images that each contain one line of text, as large as the model's input; the text is the label.

    The manifest's input fixes height and width; the steps `layout`, `decode` and `normalise` set the order of the axes,
    the colours and the numbers.

    --dataset-option:
    count  number of lines (256)
    seed   seed of the lines (1); --seed does not change them
    """

    name = "text-lines"
    options = ("count", "seed")

    def __init__(self, setup: DatasetSetup, stream: int = _SCORED) -> None:
        refuse_data_dir(setup, self.name)
        sources.check_steps(setup, self.name, ("decode", "normalise", "layout"))
        self._setup, self._stream = setup, stream
        options = Options(setup.options)
        self._count = options.whole("count", COUNT, MOST)
        self._seed = options.whole("seed", 1, 2**31)
        self._spec = _only_input(setup)
        self._steps = ImageSteps(self._spec, setup.steps.get(self._spec.name, ()))
        self._colour = _colour(setup, self._spec.name)
        self._height, self._width = _size(setup, self._spec, 1 if self._colour == "grey" else 3)
        self._drawn: dict[int, Array] = {}
        super().__init__(self._count)

    def load(self, indices: Sequence[int]) -> None:
        rows = [self._steps.of_pixels(self._in_colour(self._pixels(index))) for index in indices]
        self.hold(indices, {self._spec.name: np.stack(rows)})

    def label(self, index: int) -> str:
        return self._lines[index].text

    def calibration(self) -> Dataset:
        return TextLinesDataset(self._setup, _CALIBRATION)

    def describe(self) -> Mapping[str, object]:
        steps = sources.shown_steps(self._setup)
        total = hashlib.sha256(repr(([*map(tuple, self._lines)], sorted(steps.items()))).encode())
        for index in range(self._count):
            total.update(self._pixels(index).tobytes())
        return {
            "name": self.name,
            "count": len(self),
            "source": f"words and numbers in Pillow's embedded font, seed {self._seed}",
            "steps": steps,
            "libraries": self._steps.versions,
            "digest": total.hexdigest(),
        }

    @cached_property
    def _lines(self) -> list[Line]:
        return [self._line(index) for index in range(self._count)]

    def _line(self, index: int) -> Line:
        random = np.random.default_rng([self._seed, self._stream, index])
        text = " ".join(_token(random) for _ in range(random.integers(1, 4)))
        scale = self._height / HEIGHT
        font_pixels = int(self._height * random.uniform(0.5, 0.75))
        left_pixels = int(self._height * random.uniform(0.05, 0.2))
        room = self._width - 2 * left_pixels
        while font_pixels > _LEAST_PIXELS and _font(font_pixels).getlength(text) > room:
            font_pixels -= 1
        dark, light = random.integers(0, 96, 3).tolist(), random.integers(176, 256, 3).tolist()
        ink, paper = (dark, light) if random.random() < 0.75 else (light, dark)
        down_pixels = int(random.integers(-2, 3) * scale)
        blur_pixels = random.uniform(0.0, MOST_BLUR_PIXELS) * scale
        return Line(
            text, font_pixels, left_pixels, down_pixels, tuple(ink), tuple(paper), blur_pixels
        )

    def _pixels(self, index: int) -> Array:
        """Returns an image, (height, width, 3) uint8. Each image is drawn only once."""
        if index not in self._drawn:
            self._drawn[index] = drawn(self._lines[index], self._height, self._width)
        return self._drawn[index]

    def _in_colour(self, pixels: Array) -> Array:
        if self._colour == "grey":
            return np.asarray(Image.fromarray(pixels).convert("L"))[..., np.newaxis]
        return pixels[..., ::-1] if self._colour == "bgr" else pixels


def drawn(line: Line, height: int, width: int) -> Array:
    """Returns the image of a line, (height, width, 3) uint8."""
    image = Image.new("RGB", (width, height), line.paper)
    middle = line.left_pixels, height // 2 + line.down_pixels
    font = _font(line.font_pixels)
    ImageDraw.Draw(image).text(middle, line.text, fill=line.ink, font=font, anchor="lm")
    return np.asarray(image.filter(ImageFilter.GaussianBlur(line.blur_pixels)))


@cache
def _font(pixels: int) -> Any:
    return ImageFont.load_default(size=pixels)


def _token(random: np.random.Generator) -> str:
    """Returns a word or, with a probability of one third, a number."""
    if random.random() < 1 / 3:
        return _number(random)
    word = WORDS[random.integers(len(WORDS))]
    return (word, word, word.capitalize(), word.upper())[random.integers(4)]


def _number(random: np.random.Generator) -> str:
    digits = int(random.integers(1, 7))
    value = int(random.integers(10 ** (digits - 1), 10**digits))
    form = ("{}", "{}", "{:,}", "{}%", "{:.2f}")[random.integers(5)]
    return form.format(value / 100 if "f" in form else value)


def _only_input(setup: DatasetSetup) -> TensorSpec:
    if len(setup.inputs) != 1:
        names = ", ".join(spec.name for spec in setup.inputs)
        raise ConfigError(
            f"dataset 'text-lines' has one image per sample, but the model takes {names}: choose a different "
            "--dataset"
        )
    return setup.inputs[0]


def _colour(setup: DatasetSetup, name: str) -> str:
    """Returns the colour in the step `decode`; rgb by default. Raises a ConfigError if the step sets other options."""
    options = {"decoder": "pillow", "colour": "rgb", "dct": "accurate"}
    decode = own_step(setup, name, "decode")
    colour: str = decode.options["colour"] if decode is not None else options["colour"]
    if decode is not None and decode.options != {**options, "colour": colour}:
        raise ConfigError(
            f"dataset 'text-lines' draws its images: the step `decode` of input {name!r} may set only `colour`"
        )
    return colour


def _size(setup: DatasetSetup, spec: TensorSpec, channels: int) -> tuple[int, int]:
    """Returns height and width of the input. Raises a ConfigError if the manifest leaves these sizes open."""
    layout = own_step(setup, spec.name, "layout")
    first = layout is not None and layout.options["order"] == "nchw"
    sizes = spec.shape[2:] if first else spec.shape[1:3]
    have = spec.shape[1] if first and len(spec.shape) == 4 else spec.shape[-1]
    if len(spec.shape) != 4 or have != channels or not all(isinstance(s, int) for s in sizes):
        expected = ("batch", channels, HEIGHT, 320) if first else ("batch", HEIGHT, 320, channels)
        raise ConfigError(
            f"dataset 'text-lines' draws images as large as the model's input, but the input {spec.name!r} is "
            f"{show_shape(spec.shape)}: write its sizes in the manifest, e.g. {show_shape(expected)}"
        )
    height, width = (int(size) for size in sizes if size is not None)
    if height < _LEAST_PIXELS or width < height:
        raise ConfigError(
            f"dataset 'text-lines' draws lines that are at least {_LEAST_PIXELS} pixels high and at least as wide, but "
            f"the input {spec.name!r} is {show_shape(spec.shape)}: choose a different --dataset"
        )
    return height, width


_: type[Dataset] = TextLinesDataset
