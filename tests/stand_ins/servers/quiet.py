"""HTTP servers for tests: they answer in a thread of this process, and log nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Keeps the server's log out of the test's stderr."""

    def reply(self, body: bytes = b"", status: int = 200, content_type: str = "") -> None:
        """Sends a complete reply."""
        self.send_response(status)
        if content_type:
            self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def in_thread(server: HTTPServer) -> Iterator[str]:
    """Serves until the block ends; yields the address."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
