"""What may be used in a `with` block, which closes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self


class Closable(Protocol):
    """Can be closed, and closes at the end of a `with` block."""

    def close(self) -> None:
        """Lets go of whatever is held open. May be called at any time, and again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Closing(ABC):
    """Closes at the end of a `with` block, however that ends."""

    @abstractmethod
    def close(self) -> None:
        """See `Closable`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
