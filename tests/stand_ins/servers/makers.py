"""Stand-ins for servers that transcribe, make images and videos, describe products, and call functions.

Each server answers the data of tests/builders/submit/generated_data.py correctly, except for a share of the requests.
"""

import hashlib
import json
import re
import struct
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tests.stand_ins.servers.json_services import Asked, Service

SIDE = 1024
Right = Callable[[Any], Any]
"""Maps the content of a request to its right answer."""


def paced(service: Service, seconds: float) -> Service:
    """Returns a service whose answers take `seconds`."""

    def answer(asked: Asked) -> tuple[int, Any]:
        if asked.method == "POST":
            time.sleep(seconds)
        return service(asked)

    return answer


def transcribes(texts: Mapping[str, str]) -> Service:
    """Stands in for OpenAI's transcriptions. texts: maps the SHA-256 of a WAV file's sound, without silence at the end,
    to the sound's text.
    """

    def answer(asked: Asked) -> tuple[int, Any]:
        mark = re.search(r"boundary=(\S+)", asked.headers["content-type"])
        assert mark is not None
        parts = dict(map(_part, asked.body.split(b"--" + mark[1].encode())[1:-1]))
        assert parts["language"] == b"en"
        sound = parts["file"][44:].rstrip(b"\0")
        text = texts.get(hashlib.sha256(sound).hexdigest(), "")
        told = f" {text.capitalize()}."
        return 200, {"text": told, "usage": {"type": "tokens", "output_tokens": 4 + len(text) // 4}}

    return answer


def _part(part: bytes) -> tuple[str, bytes]:
    head, _, content = part.partition(b"\r\n\r\n")
    name = re.search(rb'name="(.*?)"', head)
    assert name is not None
    return name[1].decode(), content.removesuffix(b"\r\n")


def colour_of(caption: str) -> bytes:
    return hashlib.sha256(caption.encode()).digest()[:3]


@cache
def png_of(colour: bytes) -> bytes:
    """Returns a PNG file of a single colour."""
    rows = zlib.compress((b"\0" + colour * SIDE) * SIDE, 1)
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", rows), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c))
        for kind, c in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


def draws() -> Service:
    """Stands in for OpenAI's image generation."""

    def answer(asked: Asked) -> tuple[int, Any]:
        image = png_of(colour_of(asked.content["prompt"]))
        assert (asked.content["size"], asked.content["n"]) == (f"{SIDE}x{SIDE}", 1)
        return 200, {"created": 0, "data": [{"b64_json": b64encode(image).decode()}]}

    return answer


def films() -> Service:
    """Stands in for TensorRT-LLM's video generation."""

    def answer(asked: Asked) -> tuple[int, Any]:
        assert (asked.content["num_frames"], asked.content["seed"]) == (81, 42)
        content = b"\0\0\0\x20ftypisom" + hashlib.sha256(asked.content["prompt"].encode()).digest()
        return 200, {"video_id": "v", "video_bytes": b64encode(content).decode()}

    return answer


def chats(right: Right, model: str = "stand-in") -> Service:
    """Stands in for OpenAI's chat without streams. right: maps a request to a text, or to a list of (name, arguments)
    of calls.
    """

    def answer(asked: Asked) -> tuple[int, Any]:
        if asked.method == "GET":
            return 200, {"object": "list", "data": [{"id": model, "object": "model"}]}
        if asked.path != "/v1/chat/completions":
            return 404, {"error": "no such path"}
        content = asked.content
        is_probe = content["messages"][-1]["content"] == "Hello"
        told = "Hello" if is_probe else right(content)
        message: dict[str, Any] = {"role": "assistant", "content": told}
        if isinstance(told, list):
            calls = [{"name": name, "arguments": json.dumps(given)} for name, given in told]
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": f"call_{time.time_ns()}", "type": "function", "function": call}
                    for call in calls
                ],
            }
        finish = "tool_calls" if isinstance(told, list) else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        tokens = 2 + len(json.dumps(told)) // 4
        usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
        return 200, {
            "object": "chat.completion",
            "model": model,
            "choices": [choice],
            "usage": usage,
        }

    return answer
