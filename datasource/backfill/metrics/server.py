"""Serves metrics over HTTP, from a thread of its own that ends with the process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from backfill.metrics.exposition import CONTENT_TYPE

PATH: Final = "/metrics"

LOOPBACK: Final = "127.0.0.1"


class MetricsServer:
    """Answers GET /metrics with what `text` gives at that moment. There is neither encryption nor authentication, so
    `host` is LOOPBACK unless the user names another one."""

    def __init__(self, text: Callable[[], str], *, port: int, host: str) -> None:
        class Handler(_Handler):
            content = staticmethod(text)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="backfill-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stops listening; may be called again."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = 10
    """Seconds after which a client that asks for nothing is let go."""

    content: Callable[[], str]

    def handle(self) -> None:
        with suppress(ConnectionError):  # The client has gone, which else would be a traceback in the driver's log.
            super().handle()

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == PATH
        body = self.content().encode() if found else f"see {PATH}\n".encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing: the driver's log is no place for each scrape."""
