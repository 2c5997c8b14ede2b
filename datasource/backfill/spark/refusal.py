"""How our errors look when they cross into Spark."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

logger = logging.getLogger("backfill")

P = ParamSpec("P")
T = TypeVar("T")


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Our own errors leave the function without the frames below it.

    Spark shows a user the whole traceback, and the message, which says what to do, would be the last of thirty lines.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            # By name: the state store has errors of its own, and must not be imported in every Spark session.
            if not type(error).__module__.startswith("backfill"):
                raise
            logger.debug("raised here", exc_info=error)
            raise error.with_traceback(None) from None

    return wrapper
