"""Options as a user gives them, in addition to the two that every table of a database needs."""

from __future__ import annotations

import pytest

from backfill.errors import OptionsError
from backfill.options import Options, parse

NEEDED = {"url": "postgresql://app@db/shop", "dbtable": "public.orders"}


def parsed(**options: str) -> Options:
    return parse({**NEEDED, **options})


def problems(**options: str) -> list[str]:
    """Returns the problems that these options are refused for, one text for each."""
    with pytest.raises(OptionsError) as caught:
        parse({**NEEDED, **options})
    head, *found = str(caught.value).split("\n  - ")
    assert head == "the backfill source cannot use its options:"
    return found
