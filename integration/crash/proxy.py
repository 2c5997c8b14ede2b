"""A network between a stream and its database, for tests: cut, refused, held, slowed, mended.

A *request* is what the client says until the server speaks, an *answer* is what the server then says until the client
speaks again. Faults can be set to strike at the n-th of them, so that a test can go through all round trips of an
operation. A goodbye does not count: sessions that were kept for a while say it at any time.

Threads of this process do the work; all of them end with the `with` block.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from integration.servers.local import free_port

Kind = Literal["refused", "lost", "held", "slow"]
"""What becomes of a request: not done; done, but the answer is lost; done when the network comes back; done slowly."""

CHUNK: Final = 1 << 16
GOODBYE: Final = b"X\0\0\0\4"
"""The message Terminate (PostgreSQL manual, "Message Formats")."""

_Body: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th request (for "lost": to the n-th answer) from now; 1 is the next one.

    "refused" cuts all connections and refuses new ones for `seconds`; "lost" drops the answer and cuts its connection;
    "held" forwards nothing for `seconds`; "slow" lets `speed` bytes a second through for as long.
    """

    kind: Kind
    at: int = 1
    seconds: float = 0.05
    speed: int = 20_000


class Proxy:
    """Listens on a port of 127.0.0.1 and forwards to a server."""

    def __init__(self, host: str, port: int, *, request: Callable[[bytes], bytes] = bytes) -> None:
        """`request` turns what a client says into what the server gets."""
        self._to = (host, port)
        self._request = request
        self._listener: socket.socket | None = None
        self._lock = threading.RLock()
        self._links: set[_Link] = set()
        self._threads: list[threading.Thread] = []
        self._timers: list[threading.Timer] = []
        self._flows = threading.Event()
        self._flows.set()
        self._speed: int | None = None
        self._fault: Fault | None = None
        self._left = 0
        self._closed = False
        self.struck = 0
        """How many faults have struck so far."""

        self.requests = 0
        """How many requests there have been so far."""

        self.connections = 0
        """How many connections there have been so far."""

        self.answered = 0
        """How many bytes of answers there have been so far."""

        while True:
            self.port = free_port()
            with contextlib.suppress(OSError):
                self._listen()
                return

    # -- the network's weather -------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Ends every connection at once; new ones are accepted."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def refuse(self) -> None:
        """Ends every connection, and refuses new ones."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            # Closing alone would not wake the thread that waits for a client, and the port would stay open.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def hold(self) -> None:
        """Lets nothing through; connections stay, and new ones are accepted."""
        self._flows.clear()

    def slow(self, speed: int) -> None:
        """Lets `speed` bytes a second through, in each direction of each connection."""
        self._speed = speed

    def mend(self) -> None:
        """Makes all well again; what was held comes through."""
        self._speed = None
        self._flows.set()
        with self._lock:
            if self._listener is None and not self._closed:
                self._listen()

    def set(self, fault: Fault) -> None:
        """Sets a fault to strike when its time comes, in place of one that has not struck."""
        with self._lock:
            self._fault, self._left = fault, fault.at

    @property
    def pending(self) -> bool:
        """Whether a fault is set that has not struck."""
        return self._fault is not None

    def calm(self) -> None:
        """Takes back a fault that has not struck."""
        with self._lock:
            self._fault = None

    # -- the work --------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self._listener = listener
        self._start(lambda: self._accept(listener), "accept")

    def _start(self, body: _Body, name: str) -> None:
        thread = threading.Thread(target=body, name=f"proxy-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._to, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            link = _Link(client, server)
            with self._lock:
                if self._closed:
                    link.close()
                    return
                self._links.add(link)
                self.connections += 1
            self._start(lambda link=link: self._pump(link, link.client, link.server, "request"), "out")  # type: ignore[misc]
            self._start(lambda link=link: self._pump(link, link.server, link.client, "answer"), "in")  # type: ignore[misc]

    def _pump(self, link: _Link, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if data != GOODBYE and link.turn(what) and not self._passes(what):
                    break
                self._flows.wait()
                self.answered += len(data) if what == "answer" else 0
                self._forward(target, self._request(data) if what == "request" else data)
        link.close()
        with self._lock:
            self._links.discard(link)

    def _forward(self, target: socket.socket, data: bytes) -> None:
        while self._speed is not None and data:
            part = max(1, self._speed // 20)
            target.sendall(data[:part])
            data = data[part:]
            time.sleep(0.05)
        target.sendall(data)

    def _passes(self, what: str) -> bool:
        """Counts a request or an answer towards the fault that is set; returns whether it goes on its way."""
        with self._lock:
            self.requests += what == "request"
            fault = self._fault
            if fault is None or (what == "answer") != (fault.kind == "lost"):
                return True
            self._left -= 1
            if self._left > 0:
                return True
            self._fault = None
            self.struck += 1
        match fault.kind:
            case "lost":
                return False
            case "refused":
                self.refuse()
            case "held":
                self.hold()
            case "slow":
                self.slow(fault.speed)
        timer = threading.Timer(fault.seconds, self.mend)
        timer.daemon = True
        with self._lock:
            self._timers.append(timer)
        timer.start()
        return fault.kind != "refused"

    # -- its end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the connections and the threads; may be called twice."""
        with self._lock:
            self._closed = True
            timers = list(self._timers)
        for timer in timers:
            timer.cancel()
        self._speed = None
        self._flows.set()
        self.refuse()
        for thread in [*self._threads, *timers]:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(60)
        left = [thread.name for thread in self._threads if thread.is_alive()]
        assert not left, f"threads of the proxy have not ended: {left}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Link:
    """One connection of a client, and ours to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self._speaks = ""
        self._lock = threading.Lock()

    def turn(self, what: str) -> bool:
        """Whether this side begins to speak now."""
        with self._lock:
            begins, self._speaks = self._speaks != what, what
        return begins

    def close(self) -> None:
        for side in (self.client, self.server):
            # Wakes whoever waits for this socket; closing it would not.
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()
