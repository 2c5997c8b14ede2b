"""Array literals, parsed by whole columns, against a writer that follows array_out and a reader of single bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backfill.upstream.postgres.values.array_text import split_arrays
from backfill.upstream.postgres.values.text import UnreadableTextError

# The characters that matter, some that do not, and one of more than one byte.
ELEMENTS = (
    st.none() | st.text(st.sampled_from('{},;"\\ \tnNuUlLa\u20ac'), max_size=6) | st.sampled_from(["NULL", "null"])
)
LISTS = st.none() | st.lists(ELEMENTS, max_size=5)
WHITE_SPACE = " \t\n\r\v\f"


def quoted(element: str, delimiter: str) -> bool:
    special = '{}"\\' + delimiter + WHITE_SPACE
    return element == "" or element.upper() == "NULL" or any(character in special for character in element)


def written(elements: list[str | None], delimiter: str) -> str:
    """Writes an array as array_out does."""

    def one(element: str | None) -> str:
        if element is None:
            return "NULL"
        if not quoted(element, delimiter):
            return element
        return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + delimiter.join(map(one, elements)) + "}"


def taken_apart(texts: list[str | None], delimiter: str = ",") -> list[list[str | None] | None]:
    """Returns what the parser finds in an array that does not begin where its buffers begin."""
    array = pa.array(["{before}", None, *texts, "{after}"], pa.string()).slice(2, len(texts))
    found = split_arrays(array, delimiter)
    elements = found.values.cast(pa.string())
    elements.validate(full=True)
    lists: Any = replace(found, values=elements).lists(pa.list_(pa.string()))
    lists.validate(full=True)
    values: list[list[str | None] | None] = lists.to_pylist()
    return values


@given(st.lists(LISTS, max_size=8), st.sampled_from(",;"))
@example([[], [""], [None], ["NULL"], None, ['\\"', "\\\\", "\\"]], ",")
def test_the_parser_finds_the_elements_that_were_written(lists: list[list[str | None] | None], delimiter: str) -> None:
    texts = [None if elements is None else written(elements, delimiter) for elements in lists]
    assert taken_apart(texts, delimiter) == lists


@given(st.lists(st.lists(st.integers(-(2**40), 2**40)), min_size=1, max_size=20))
def test_numbers_are_taken_apart(lists: list[list[int]]) -> None:
    texts: list[str | None] = ["{" + ",".join(map(str, each)) + "}" for each in lists]
    assert taken_apart(texts) == [list(map(str, each)) for each in lists]


@pytest.mark.parametrize("text", ["{{1,2},{3,4}}", '{{"a"},{"{"}}', "{{{1}}}", "{{},{}}"])
def test_an_array_of_several_dimensions_is_refused(text: str) -> None:
    with pytest.raises(UnreadableTextError, match="more than one dimension"):
        taken_apart(["{1}", text])


@pytest.mark.parametrize("text", ["[0:1]={1,2}", "[2:2]={a}", "[1:1][2:2]={{a}}"])
def test_an_array_with_another_first_index_is_refused(text: str) -> None:
    with pytest.raises(UnreadableTextError, match="first index"):
        taken_apart([text, "{1}"])


@given(st.lists(st.text(st.sampled_from('{},"\\a1NUL'), max_size=12), max_size=5))
def test_no_text_at_all_breaks_the_parser(texts: list[str]) -> None:
    try:
        found = taken_apart(list(texts))
    except (UnreadableTextError, pa.ArrowInvalid):
        return
    assert len(found) == len(texts)
