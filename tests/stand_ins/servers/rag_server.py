"""A RAG service: answers questions as a chat with OpenAI's API, and stores pages through a JSON API.

The service knows the answers to the data of tests/builders/submit/mlperf_data.py. Every `wrong_every`-th question gets
a wrong answer.
"""

import hashlib
import json
import re
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from typing import Any, Self

from tests.stand_ins.servers.quiet import QuietHandler

MODEL = "e2e-rag-qna"
STORED = "\x01"


class RagServer:
    """Serves until the block ends.

    tokens: number of tokens in each answer. wrong_every: each question whose number is a multiple of this value gets a
    wrong answer; 0: none. pages: number of pages; the reply to the last page is the MD5 of the database.
    """

    def __init__(
        self, tokens: int = 270, wrong_every: int = 0, pages: int = 0, port: int = 0
    ) -> None:
        self.tokens, self.wrong_every, self.pages = tokens, wrong_every, pages
        owner = self

        class Handler(_Handler):
            server_owner = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, question: str) -> str:
        match = re.search(r"follows (\d+)", question)
        if match is None:
            return "0"
        number = int(match[1])
        wrong = self.wrong_every and number % self.wrong_every == 0
        return str(number + (2 if wrong else 1))

    def store(self, name: str, html: str) -> str:
        """Returns one byte for a stored page, or the MD5 for the last page."""
        if not html:
            return "\0"
        if name != f"page_{self.pages - 1:05}.html":
            return STORED
        return hashlib.md5(f"{self.pages} pages".encode()).hexdigest()

    def judged(self, prompt: str) -> str:
        """Answers the prompt that MLCommons sends to a judge; an answer is right if it equals the known answer."""
        right, given = (
            re.search(rf"{name} ANSWER: (.*)", prompt) for name in ("GROUND TRUTH", "LLM")
        )
        correct = right is not None and given is not None and right[1] == given[1]
        return f"```json\n{json.dumps({'correct': correct, 'reasoning': 'compared'})}\n```"


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server_owner: RagServer
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._reply({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        owner = self.server_owner
        if self.path == "/documents":
            self._reply({"stored": owner.store(body["name"], body["html"])})
            return
        if self.path != "/v1/chat/completions":
            self._reply({"error": {"message": "no such path"}}, 404)
            return
        prompt = body["messages"][-1]["content"]
        text = owner.judged(prompt) if "GROUND TRUTH" in prompt else owner.answer(prompt)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = [100 + int(text), *range(1, owner.tokens)]
        usage = {
            "prompt_tokens": 9,
            "completion_tokens": owner.tokens,
            "total_tokens": 9 + owner.tokens,
        }
        self._reply(
            {
                "id": "1",
                "object": "chat.completion",
                "model": MODEL,
                "choices": [choice],
                "usage": usage,
            }
        )

    def _reply(self, content: object, status: int = 200) -> None:
        self.reply(json.dumps(content).encode(), status, "application/json")


def main() -> None:
    """Serves as a separate process, for benchmarks; arguments: PORT TOKENS WRONG_EVERY PAGES."""
    port, tokens, wrong_every, pages = map(int, sys.argv[1:])
    with RagServer(tokens, wrong_every, pages, port) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
