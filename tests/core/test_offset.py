"""Each state of a stream has one text as an offset; what cannot be read is refused with one kind of error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.epoch import Epoch
from backfill.errors import OffsetError
from backfill.offset import Barrier, InitialOffset, Offset, from_json, from_text, to_json, to_text
from backfill.progress import Completed, Finished, Frontier, InProgress
from tests.core.strategies import damaged, json_values, keys, offsets
from tests.golden.values import OFFSETS

GOLDEN = st.sampled_from([json.loads(to_text(offset)) for offset in OFFSETS.values()])


@given(offsets)
def test_an_offset_comes_back_from_its_text(offset: Offset) -> None:
    assert from_text(to_text(offset)) == offset


@given(offsets)
def test_an_offset_comes_back_from_json_that_another_writer_has_laid_out(offset: Offset) -> None:
    assert from_json(json.loads(json.dumps(to_json(offset), indent=2))) == offset


@given(offsets)
def test_an_offset_as_json_is_what_its_text_gives(offset: Offset) -> None:
    assert to_json(offset) == json.loads(to_text(offset))


@given(offsets, offsets)
def test_two_offsets_have_one_text_exactly_if_they_are_equal(one: Offset, other: Offset) -> None:
    assert (to_text(one) == to_text(other)) == (one == other)


@given(offsets)
def test_reading_and_writing_again_gives_the_same_text(offset: Offset) -> None:
    text = to_text(offset)
    assert to_text(from_text(text)) == text


@given(st.lists(keys(1), min_size=3, max_size=3, unique=True), st.permutations([0, 1, 2, 3]))
def test_the_text_does_not_tell_in_which_order_vnodes_were_read(bounds: list[tuple[str]], order: list[int]) -> None:
    start = Frontier.at_start(tuple(bounds))
    one_by_one = start
    for number in order:
        one_by_one = one_by_one.advanced({number: InProgress(("x",), 1)}).advanced({number: Completed(number)})
    together = start.advanced({number: Completed(number) for number in order})
    texts = {to_text(Barrier("s", (), Epoch(1, "p", 1, 1), progress)) for progress in (one_by_one, together)}
    assert len(texts) == 1


@settings(max_examples=500)
@given(st.data())
def test_a_damaged_offset_is_refused_or_was_not_damaged(data: st.DataObject) -> None:
    value = data.draw(damaged(data.draw(GOLDEN)))
    try:
        offset = from_json(value)
    except OffsetError:
        return
    # The damage made another valid offset, such as by another digit: what was read is what stands there.
    assert json.dumps(to_json(offset), sort_keys=True) == json.dumps(value, sort_keys=True)


@given(st.sampled_from([to_text(offset) for offset in OFFSETS.values()]), st.data())
def test_a_text_that_was_cut_short_is_refused(text: str, data: st.DataObject) -> None:
    with pytest.raises(OffsetError, match="damaged offset"):
        from_text(text[: data.draw(st.integers(0, len(text) - 1))])


@given(json_values)
def test_what_is_no_offset_is_refused(value: Any) -> None:
    with pytest.raises(OffsetError):
        from_json(value)


FINISHED: dict[str, Any] = to_json(OFFSETS["finished"])
KEY = ["secret-key-value"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": True}, "without a version"),
        ({"version": "1"}, "without a version"),
        ({"version": 0}, "not what this release writes"),
        ({"version": -1}, "not what this release writes"),
        ({"stream": 7}, "a text is of type int"),
        ({"upstream": [["slot", "x"]]}, "AttributeError"),
        ({"upstream": {"slot": None}}, "a text is of type NoneType"),
        ({"epoch": {"number": 1}}, "KeyError: 'position'"),
        ({"epoch": {"number": 1.0, "position": "p", "version": 1, "timestamp": 1}}, "a whole number is of type float"),
        ({"epoch": {"number": True, "position": "p", "version": 1, "timestamp": 1}}, "a whole number is of type bool"),
        ({"epoch": {"number": -1, "position": "p", "version": 1, "timestamp": 1}}, "negative"),
        ({"progress": []}, "there are no vnodes"),
        ({"progress": [{"upto": []}]}, "IndexError"),
        ({"progress": [{"upto": [KEY]}]}, "do not divide the key space"),
        ({"progress": [{"upto": [KEY]}, {"after": ["b"], "upto": [None]}]}, "do not divide the key space"),
        ({"progress": [{"after": ["b"], "upto": [None]}]}, "do not divide the key space"),
        ({"progress": [{"after": None, "upto": [None]}]}, "not what this release writes"),
        ({"progress": [{"upto": [None, None]}]}, "do not divide the key space"),
        ({"progress": [{"upto": "secret-key-value"}]}, "a key is not a list of texts"),
        ({"progress": [{"rows": [1], "upto": KEY[0]}, {"upto": [None]}]}, "a key is not a list of texts"),
        ({"progress": [{"rows": [1], "upto": KEY}, {"rows": [1], "upto": None}]}, "not folded"),
        ({"progress": [{"upto": [KEY]}, {"upto": [None]}]}, "not what this release writes"),
        ({"progress": [{"rows": [], "upto": None}]}, "a run of vnodes is empty"),
        ({"progress": [{"pos": [7], "rows": 1, "upto": None}]}, "a text is of type int"),
        ({"progress": [{"pos": [], "rows": 1, "upto": None}]}, "a key is not a list of texts"),
        ({"ahead": []}, "not what this release writes"),
        ({"base": {"version": 1}}, "KeyError: 'epoch'"),
        ({"unknown": 1}, "not what this release writes"),
        ({"version": 2}, "not what this release writes"),
        ({"again": {"request": "a", "progress": {"vnodes": 1, "rows": 1}}}, "not what this release writes"),
        ({"version": 2, "again": {"request": "a"}}, "KeyError: 'progress'"),
        ({"version": 2, "again": {"request": "a", "progress": []}}, "there are no vnodes"),
        (
            {"version": 2, "again": {"request": "a", "progress": [{"upto": [KEY]}, {"after": KEY, "upto": [KEY]}]}},
            "not what this release writes",
        ),
    ],
)
def test_damage_is_named_without_the_values(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(OffsetError) as caught:
        from_json({**FINISHED, **change})
    assert reason in str(caught.value)
    assert KEY[0] not in str(caught.value)


def test_deeply_nested_nonsense_is_refused() -> None:
    with pytest.raises(OffsetError, match="damaged offset"):
        from_text('{"version":1,"epoch":' + "[" * 100_000)
    nested = FINISHED
    for _ in range(5000):
        nested = {**FINISHED, "base": nested}
    with pytest.raises(OffsetError, match="damaged offset"):
        from_json(nested)


def test_nothing_read_is_a_constant_of_a_few_bytes() -> None:
    assert to_text(InitialOffset()) == '{"version":1}'
    assert from_text('{"version": 1}') == InitialOffset()


def test_completed_vnodes_take_no_bounds_and_a_finished_backfill_takes_no_vnodes() -> None:
    bounds = tuple((str(number),) for number in range(9_999))
    frontier = Frontier.at_start(bounds)
    done = frontier.advanced({number: Completed(0) for number in range(10_000) if number not in (17, 4711)})
    text = to_text(Barrier("s", (), Epoch(1, "p", 1, 1), done))
    assert text.count("upto") == 5
    assert len(to_text(Barrier("s", (), Epoch(1, "p", 1, 1), Finished(10_000, 2**63)))) < 160
