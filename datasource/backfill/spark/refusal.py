"""How our errors look when they cross into Spark.

Spark shows a user the whole traceback, and the message, which says what to do, would be the last of thirty lines. So
our own errors cross without the frames below.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from backfill.scarcity import scarcity

logger = logging.getLogger("backfill")

P = ParamSpec("P")
T = TypeVar("T")


def without_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """The function, from which our own errors come without a traceback."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shown = _shown(error)
            if shown is None:
                raise
            raise shown.with_traceback(None) from None

    return wrapper


def yielding_without_traceback(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The same for a generator."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from function(*args, **kwargs)
        except Exception as error:
            shown = _shown(error)
            if shown is None:
                raise
            raise shown.with_traceback(None) from None

    return wrapper


def _shown(error: Exception) -> Exception | None:
    """The error that a user is shown in place of this one; None where it is nothing of ours."""
    # By name: the state store has errors of its own, and must not be imported in every Spark session.
    shown = error if type(error).__module__.startswith("backfill") else scarcity(error)
    if shown is not None:
        logger.debug("raised here", exc_info=error)
    return shown
