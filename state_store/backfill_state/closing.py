"""What may be used in a `with` block, which closes it."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Protocol, Self


class Closable(Protocol):
    """Closes at the end of a `with` block, however that ends; whoever inherits it has only `close` to write."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of whatever is held open. May be called at any time, and again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
