"""What is found before a stream is started."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from backfill.errors import BackfillError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: in words, with the SQL that mends it where the words do not say it.

    `refuses`: a stream would not begin, or would end soon; else it is only good to know.
    """

    what: str
    mend: str = ""
    refuses: bool = True


def refused(check: Callable[..., T], *arguments: object) -> Generator[Finding, None, T | None]:
    """Runs a check, which is one of the stream's own. Yields a finding if it raises: the message names the SQL.

    Returns the check's result, or None if it raised.
    """
    try:
        return check(*arguments)
    except BackfillError as error:
        yield Finding(error.message)
        return None
