"""A server with OpenAI's endpoints for sound, images and vectors, whose answers are known.

A transcript states the rate and the number of audio samples that the server found in the uploaded file. The sound for a
text has SAMPLES_PER_CHARACTER audio samples of the value VALUE, sent in two pieces. An image consists of a PNG's
signature and the prompt. The vector for a text is (length of the text, 1).
"""

import base64
import io
import json
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from http.server import ThreadingHTTPServer
from typing import Any

from tests.stand_ins.servers.quiet import QuietHandler, in_thread

SAMPLES_PER_CHARACTER = 240
VALUE = 7
PNG = b"\x89PNG\r\n\x1a\n"
GAP_S = 0.03


class MediaServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Path and fields of each received request."""
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: MediaServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._reply({"data": [{"id": "media", "owned_by": "tests"}]})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/audio/transcriptions":
            fields = self._form(body)
            file = fields.pop("file")
            self.server.asked.append((self.path, fields))
            with wave.open(io.BytesIO(file)) as sound:
                assert (sound.getnchannels(), sound.getsampwidth()) == (1, 2)
                text = f"{sound.getframerate()} {sound.getnframes()}"
            self._reply({"text": text})
            return
        fields = json.loads(body)
        self.server.asked.append((self.path, fields))
        if self.server.status != 200:
            self._reply({"error": {"message": "overloaded"}}, self.server.status)
        elif self.path == "/v1/audio/speech":
            self._speak(fields["input"])
        elif self.path == "/v1/images/generations":
            image = base64.b64encode(PNG + fields["prompt"].encode()).decode()
            self._reply({"data": [{"b64_json": image}]})
        elif self.path in ("/v1/embeddings", "/pooling"):
            key = "embedding" if self.path == "/v1/embeddings" else "data"
            data = [
                {"index": i, key: [float(len(text)), 1.0]} for i, text in enumerate(fields["input"])
            ]
            self._reply({"data": data[::-1]})
        else:
            scores = [
                {"index": i, "relevance_score": 1 / (1 + abs(len(text) - len(fields["query"])))}
                for i, text in enumerate(fields["documents"])
            ]
            self._reply({"results": sorted(scores, key=lambda one: -one["relevance_score"])})

    def _form(self, body: bytes) -> dict[str, Any]:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message = BytesParser().parsebytes(head + body)
        fields: dict[str, Any] = {}
        for part in message.get_payload():
            assert not isinstance(part, str)
            name = part.get_param("name", header="content-disposition")
            content = part.get_payload(decode=True)
            fields[str(name)] = content if name == "file" else content.decode()  # type: ignore[union-attr]
        return fields

    def _speak(self, text: str) -> None:
        sound = VALUE.to_bytes(2, "little") * SAMPLES_PER_CHARACTER * len(text)
        self.send_response(200)
        self.send_header("Content-Type", "audio/pcm")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in (sound[: len(sound) // 2], sound[len(sound) // 2 :]):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()
            time.sleep(GAP_S)
        self.wfile.write(b"0\r\n\r\n")

    def _reply(self, content: object, status: int = 200) -> None:
        self.reply(json.dumps(content).encode(), status, "application/json")


@contextmanager
def media_server() -> Iterator[MediaServer]:
    server = MediaServer()
    with in_thread(server):
        yield server
