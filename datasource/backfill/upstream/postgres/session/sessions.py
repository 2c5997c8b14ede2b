"""The session in which an upstream asks and commands; rows and changes are read in sessions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from backfill.upstream.postgres.session.connection import Connector, Session
from backfill.upstream.postgres.session.retries import RetryPolicy
from backfill.upstream.postgres.session.server import require_primary_again

T = TypeVar("T")


class ControlSession:
    """One session, opened when it is first needed and again after it was lost."""

    def __init__(self, connector: Connector, retries: RetryPolicy) -> None:
        self._connector = connector
        self.retries = retries
        self._session: Session | None = None
        self.needs_primary = False
        """Whether the stream needs the primary, so that a server which is a standby for a moment is waited for."""

    def current(self) -> Session:
        if self._session is None or self._session.closed:
            self._session = self._connector.session()
        if self.needs_primary:
            require_primary_again(self._session)
        return self._session

    def run(self, operation: Callable[[Session], T]) -> T:
        """The operation's result, tried again in a new session while its errors are transient."""
        return self.retry(lambda: operation(self.current()))

    def retry(self, attempt: Callable[[], T]) -> T:
        """As `run`, for an attempt that opens other sessions too."""
        return self.retries.run(attempt, recover=self.close)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
