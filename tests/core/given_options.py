"""Options as a user gives them, beside the two that every table of a database needs."""

from __future__ import annotations

import pytest

from backfill.errors import OptionsError
from backfill.options import Options, parse

NEEDED = {"url": "postgresql://app@db/shop", "dbtable": "public.orders"}


def parsed(**options: str) -> Options:
    return parse({**NEEDED, **options})


def problems(**options: str) -> list[str]:
    """What is wrong, one text for each problem."""
    with pytest.raises(OptionsError) as caught:
        parse({**NEEDED, **options})
    head, *found = str(caught.value).split("\n  - ")
    assert head == "the backfill source cannot use its options:"
    return found
