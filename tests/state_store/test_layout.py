from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_state.layout import quoted, stored_names


@pytest.mark.parametrize(
    ("names", "stored"),
    [
        (["region", "Id"], ("region", "Id")),
        (["id", "ID"], ("id", "ID_")),
        (["vnode", "Row_Count", "backfill_finished"], ("vnode_", "Row_Count_", "backfill_finished_")),
        (["vnode", "vnode_"], ("vnode__", "vnode_")),
        (["", "_"], ("__", "_")),
    ],
)
def test_a_name_is_kept_unless_it_clashes(names: list[str], stored: tuple[str, ...]) -> None:
    assert stored_names(names) == stored


@given(st.lists(st.sampled_from(["vnode", "VNODE", "vnode_", "Vnode_", "a", "A", "A_", "", "_", "__"]), unique=True))
def test_stored_names_differ_by_more_than_case(names: list[str]) -> None:
    everyone = [name.casefold() for name in ("", "vnode", "backfill_finished", "row_count", *stored_names(names))]
    assert len(set(everyone)) == len(everyone)


def test_a_quoted_name_cannot_end_early() -> None:
    assert quoted('a"; DROP TABLE stream; --') == '"a""; DROP TABLE stream; --"'
