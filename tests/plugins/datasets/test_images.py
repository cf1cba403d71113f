"""An image file becomes the model's input exactly as in the reference, or is refused."""

import importlib.util
import io
import struct
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from harness.datasets.parts.image.decode import check_file, damage, make_decoder
from harness.datasets.parts.image.images import ImageSteps
from harness.errors import ConfigError
from harness.models.steps.steps import PREPROCESS
from harness.types import Step
from tests.builders.pictures import cut, encode, image_spec, photographs, step
from tests.builders.refusals import refusal

DECODERS = (
    "pillow",
    "opencv",
    "simplejpeg",
    pytest.param(
        "tensorflow",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(
                importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow"
            ),
        ],
    ),
)
each_decoder = pytest.mark.parametrize("decoder", DECODERS)


def decode(data: bytes, decoder: str = "pillow", **options: Any) -> Any:
    return make_decoder(step("decode", decoder=decoder, **options).options)(data)


def run(data: bytes, *steps: Step, shape: tuple[int, ...] = (3,), dtype: str = "float32") -> Any:
    return ImageSteps(image_spec(*shape, dtype=dtype), steps)(data)


@pytest.mark.parametrize("colour", ["rgb", "bgr", "grey"])
@each_decoder
def test_every_decoder_gives_the_same_pixels(decoder: str, colour: str) -> None:
    data = encode(photographs()[0])
    pixels = decode(data, decoder, colour=colour)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (427, 640, 1 if colour == "grey" else 3)
    assert np.array_equal(pixels, decode(data, "pillow", colour=colour))


def test_bgr_is_rgb_backwards() -> None:
    data = encode(photographs()[1])
    assert np.array_equal(decode(data, colour="bgr"), decode(data, colour="rgb")[..., ::-1])


def test_a_png_is_decoded_to_the_pixels_it_was_made_from() -> None:
    pixels = cut(3, 20, 30)
    for decoder in ("pillow", "opencv"):
        assert np.array_equal(decode(encode(pixels, "PNG"), decoder), pixels)


@each_decoder
def test_exif_orientation_is_ignored_by_all(decoder: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # tag 0x0112 is the orientation, and 6 is a quarter turn
    turned, plain = encode(cut(0, 40, 60), exif=exif), encode(cut(0, 40, 60))
    assert turned != plain
    assert np.array_equal(decode(turned, decoder), decode(plain, decoder))


def test_the_fast_dct_is_something_else() -> None:
    data = encode(photographs()[0])
    fast = decode(data, "simplejpeg", dct="fast").astype(int)
    assert 0 < np.abs(fast - decode(data, "simplejpeg")).max() < 64


def reference_resnet50(data: bytes) -> Any:
    """Repeats pre_process_vgg from MLPerf's reference (mlcommons/inference, vision/classification_and_detection) with
    OpenCV alone.
    """
    image = cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)  # fmt: skip
    height, width, _ = image.shape
    short = int(100.0 * 224 / 87.5)
    size = (
        (short, int(short * height / width)) if height > width else (int(short * width / height), short)
    )  # fmt: skip
    image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    height, width, _ = image.shape
    top, left = int((height - 224) / 2), int((width - 224) / 2)
    image = image[top : int((height + 224) / 2), left : int((width + 224) / 2)]
    image = np.asarray(image, np.float32) - np.array([123.68, 116.78, 103.94], np.float32)
    return image.transpose(2, 0, 1)


RESNET50 = (
    step("decode", decoder="opencv"),
    step("resize", size=256, keep="shorter", method="area", library="opencv"),
    step("crop", size=224),
    step("normalise", mean=(123.68, 116.78, 103.94)),
    step("layout", order="nchw"),
)


@pytest.mark.parametrize(
    ("height", "width"), [(427, 640), (427, 303), (300, 300), (333, 257), (100, 90), (256, 301)]
)
def test_mlperf_resnet50_is_the_reference_bit_for_bit(height: int, width: int) -> None:
    data = encode(cut(1, height, width))
    made = run(data, *RESNET50)
    assert (made.shape, str(made.dtype)) == ((3, 224, 224), "float32")
    assert np.array_equal(made, reference_resnet50(data))


@pytest.mark.parametrize("library", ["pillow", "opencv"])
@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "area", "lanczos"])
@pytest.mark.parametrize("colour", ["rgb", "grey"])
def test_every_resize_method_makes_the_requested_size(
    library: str, method: str, colour: str
) -> None:
    data, channels = encode(cut(0, 50, 70)), 1 if colour == "grey" else 3
    resize = step("resize", size=(20, 30), method=method, library=library)
    made = run(data, step("decode", colour=colour), resize, dtype="uint8")
    assert made.shape == (20, 30, channels)
    whole = decode(data, colour=colour)
    # Both arrays show the same picture, so their means are close.
    assert abs(float(made.mean()) - float(whole.mean())) < 6


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow")
@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "area", "lanczos"])
def test_tensorflow_resizes_too(method: str) -> None:
    data = encode(cut(0, 50, 70))
    resize = step("resize", size=(20, 30), method=method, library="tensorflow")
    made = run(data, resize, dtype="uint8")
    assert (made.shape, str(made.dtype)) == ((20, 30, 3), "uint8")
    assert abs(float(made.mean()) - float(decode(data).mean())) < 6


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(50, 70, (20, 28)), (70, 50, (28, 20)), (33, 100, (20, 60)), (40, 40, (20, 20))],
)
def test_the_shorter_side_gets_the_size_and_the_other_follows(
    height: int, width: int, size: tuple[int, int]
) -> None:
    made = run(encode(cut(0, height, width)), step("resize", size=20, keep="shorter"))
    assert made.shape[:2] == size


def letterboxed(height: int, width: int, side: int, **more: Any) -> Any:
    pixels = np.full((height, width, 3), 200, np.uint8)
    resize = step("resize", size=(side, side), keep="pad", **more)
    return run(encode(pixels, "PNG"), resize, dtype="uint8")


def test_a_letterbox_holds_the_whole_image_and_the_fill() -> None:
    made = letterboxed(50, 100, 64, fill=114)
    assert made.shape == (64, 64, 3)
    assert (made[:16] == 114).all()
    assert (made[48:] == 114).all()
    assert (made[16:48] == 200).all()


def test_an_odd_row_of_a_letterbox_is_below() -> None:
    assert np.flatnonzero(letterboxed(5, 10, 10)[:, 0, 0]).tolist() == [2, 3, 4, 5, 6]


def test_crop_is_centred() -> None:
    pixels = cut(0, 21, 30)
    by_size = run(encode(pixels, "PNG"), step("crop", size=(10, 20)), dtype="uint8")
    assert np.array_equal(by_size, pixels[5:15, 5:25])
    by_fraction = run(encode(pixels, "PNG"), step("crop", fraction=0.5), dtype="uint8")
    assert np.array_equal(by_fraction, pixels[5:16, 7:23])


def test_normalise_scales_then_subtracts_then_divides() -> None:
    pixels = cut(0, 4, 5)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    made = run(encode(pixels, "PNG"), step("normalise", scale=1 / 255, mean=mean, std=std))
    scaled = pixels.astype(np.float32) * np.float32(1 / 255)
    wanted = (scaled - np.array(mean, np.float32)) / np.array(std, np.float32)
    assert np.array_equal(made, wanted)
    one = run(encode(pixels, "PNG"), step("normalise", mean=(127.5,), std=(127.5,)))
    assert np.array_equal(one, (pixels.astype(np.float32) - 127.5) / 127.5)


def test_floats_become_integers_rounded_and_clipped() -> None:
    data = encode(np.array([[[0, 100, 255]]], np.uint8), "PNG")
    made = run(data, step("normalise", scale=1.5, mean=(60.3,)), dtype="uint8")
    assert made.tolist() == [[[0, 90, 255]]]
    signed = run(data, step("normalise", mean=(128.0,)), dtype="int8")
    assert signed.tolist() == [[[-128, -28, 127]]]


def test_changing_the_colour_order_changes_the_input() -> None:
    data = encode(cut(0, 30, 30))
    rgb = run(data, step("decode", colour="rgb"), step("layout", order="nchw"))
    bgr = run(data, step("decode", colour="bgr"), step("layout", order="nchw"))
    assert np.array_equal(rgb[::-1], bgr)
    assert not np.array_equal(rgb, bgr)


def png_header(width: int, height: int) -> bytes:
    """Returns a PNG of a few hundred bytes whose header states this size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))  # fmt: skip

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")  # fmt: skip


def jpeg_bomb() -> bytes:
    """Returns a complete JPEG whose header states 65,500 x 65,500."""
    data = bytearray(encode(cut(0, 16, 16)))
    at = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, at + 5, 65_500, 65_500)
    return bytes(data)


@each_decoder
@pytest.mark.parametrize("kind", ["png", "png, very large", "jpeg"])
def test_an_image_bomb_is_refused_before_it_is_decoded(decoder: str, kind: str) -> None:
    sizes = {"png": (10_000, 10_000), "png, very large": (60_000, 60_000)}
    data = png_header(*sizes[kind]) if kind in sizes else jpeg_bomb()
    with pytest.raises(ValueError, match=r"could fill the memory"):
        decode(data, decoder)


@each_decoder
@pytest.mark.parametrize("kept", [0.99, 0.5, 0.1, 0.001])
def test_a_truncated_jpeg_is_refused(decoder: str, kept: float) -> None:
    data = encode(photographs()[0])
    with pytest.raises(ValueError, match=r"truncated|no image"):
        decode(data[: int(kept * len(data))], decoder)


@pytest.mark.parametrize("kept", [0.9, 0.3])
@pytest.mark.parametrize("decoder", ["pillow", "opencv"])
def test_a_truncated_png_is_refused(decoder: str, kept: float) -> None:
    data = encode(cut(0, 100, 100), "PNG")
    with pytest.raises(ValueError, match=r"broken|decode"):
        decode(data[: int(kept * len(data))], decoder)


@each_decoder
@pytest.mark.parametrize("data", [b"", b"hello", b"\xff\xd8", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_bytes_that_are_not_an_image_are_refused(decoder: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no image data|not an image"):
        decode(data, decoder)


def test_a_thumbnail_does_not_hide_that_the_image_is_cut_off() -> None:
    whole, thumbnail = encode(cut(0, 100, 100)), encode(cut(0, 10, 10))
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    data = whole[:2] + segment + whole[2:]
    assert np.array_equal(decode(data, "opencv"), decode(whole, "opencv"))
    with pytest.raises(ValueError, match=r"truncated"):
        decode(data[:-50], "opencv")


def test_simplejpeg_refuses_formats_other_than_jpeg() -> None:
    told = refusal(decode, encode(cut(0, 9, 9), "PNG"), "simplejpeg", error=ValueError)
    assert told == "it is not a JPEG, the only format that simplejpeg decodes"


def test_too_small_an_image_to_crop_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^10 x 12 pixels are left .* to crop 11 x 11: resize"):
        run(encode(cut(0, 10, 12)), step("crop", size=11))


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([step("layout", order="nchw"), step("crop", size=3)], "the steps decode, layout, crop are in the wrong order"),
        ([step("normalise"), step("normalise")], "the step 'normalise' appears 2 times"),
        ([step("normalise", mean=(1, 2))], "normalise has 2 values of mean for 3 channels"),
        ([step("clip", low=0, high=1)], "the step 'clip' is not for images"),
    ],
)  # fmt: skip
def test_steps_that_make_no_sense_are_refused(steps: list[Step], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ImageSteps(image_spec(3), steps)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("decode", {"decoder": "opencv", "dct": "fast"}, "opencv has no fast dct"),
        ("resize", {"size": (3, 4), "keep": "shorter"}, "keep: shorter needs a single number"),
        ("crop", {}, "give either size or fraction"),
        ("crop", {"size": 3, "fraction": 0.5}, "give either size or fraction"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    name: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        PREPROCESS[name](**options)


def test_versions_of_the_image_libraries_are_reported() -> None:
    versions = ImageSteps(image_spec(3), RESNET50).versions
    assert set(versions) == {"numpy", "opencv"}
    assert f" {cv2.__version__}" in versions["opencv"]


@pytest.mark.parametrize("kind", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_good_jpeg_is_not_called_damaged(kind: str, progressive: bool) -> None:
    pytest.importorskip("simplejpeg")
    file = io.BytesIO()
    picture = Image.fromarray(cut(3, 70, 90)).convert(kind)
    picture.save(file, "JPEG", progressive=progressive, quality=90)
    assert damage(file.getvalue()) == ""


def test_other_formats_are_not_checked_for_damage() -> None:
    assert damage(encode(cut(0, 20, 20), "PNG")) == ""


def test_most_damage_in_a_jpeg_is_seen() -> None:
    """Some damage is not detected, because a JPEG has no checksum and a damaged code may still be valid. Of 300 files,
    39 % were detected with one changed byte, 56 % with four, 87 % with 32, and 96 % with 256.
    """
    pytest.importorskip("simplejpeg")
    random = np.random.default_rng(0)
    seen = 0
    for number in range(100):
        content = bytearray(encode(cut(number, 120, 160), quality=90))
        start = check_file(bytes(content)).scan + 20
        at = int(random.integers(start, len(content) - 40))
        content[at : at + 32] = random.integers(1, 255, 32, np.uint8).tobytes()
        seen += bool(damage(bytes(content)))
    assert seen >= 80
