"""Arrow sessions that nobody uses at the moment are kept for the next batch: opening one may take longer than that."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from backfill.upstream.postgres.session.arrow_session import ArrowSession

KEEP_SECONDS: Final = 30.0
"""How long an Arrow session is kept for the next batch, before it is closed: longer than an idle stream waits between
two looks at its log (`epochs.reading.LOOK_INTERVAL`), and mostly longer than a reader waits for the next batch."""

OLD_AFTER: Final = 3600.0
"""Seconds after which an Arrow session is not kept any more: as long as it lasts, the server keeps almost a kilobyte
for each temporary table that was made in it, and a sink makes one for each batch.
"""


class IdleSessions:
    """The idle sessions of this process. Each is kept for whoever is equal to its owner, and closed when it has waited
    for long or is old.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, object, ArrowSession]] = []
        """Each with the time at which it is closed, and its owner."""

        self._timed = False
        """Whether a timer is set: one is enough, however often sessions come and go."""

        self._left: list[tuple[float, object, ArrowSession]] = []
        """The sessions of the process that this one was forked from: held, so that nothing closes them."""

    def take(self, owner: object) -> ArrowSession | None:
        """The owner's session that was used last, so that those which are not needed wait long enough to be closed."""
        with self._lock:
            for item in reversed(self._waiting):
                _, whose, session = item
                if whose == owner:
                    self._waiting.remove(item)
                    return session
        return None

    def put(self, owner: object, session: ArrowSession) -> None:
        now = time.monotonic()
        if now - session.opened_at > OLD_AFTER:
            session.close()
            return
        with self._lock:
            self._waiting.append((now + KEEP_SECONDS, owner, session))
            self._set_timer()

    def close_all(self, owner: object) -> None:
        with self._lock:
            closed = [item for item in self._waiting if item[1] == owner]
            self._waiting = [item for item in self._waiting if item[1] != owner]
        for _, _, session in closed:
            session.close()

    def _set_timer(self) -> None:
        if self._waiting and not self._timed:
            self._timed = True
            timer = threading.Timer(self._waiting[0][0] - time.monotonic(), self._close_old)
            timer.daemon = True
            timer.start()

    def leave_to_parent(self) -> None:
        """For a process that was just forked: it must not close its parent's sessions, which would end them there."""
        self._left, self._waiting, self._timed = self._waiting, [], False
        self._lock = threading.Lock()

    def _close_old(self) -> None:
        now = time.monotonic()
        with self._lock:
            old = [item for item in self._waiting if item[0] <= now]
            self._waiting = [item for item in self._waiting if item[0] > now]
            self._timed = False
            self._set_timer()
        for _, _, session in old:
            session.close()


IDLE: Final = IdleSessions()
os.register_at_fork(after_in_child=IDLE.leave_to_parent)
