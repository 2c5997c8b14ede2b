"""What a query's progress tells of a stream, as a value, as text and as HTML."""

from __future__ import annotations

import json

import pytest

from backfill.reported import SourceReport, StreamProgress, distinctly_named

SAID = {
    "table": '"public"."a<b"',
    "phase": "snapshot",
    "control": "paused",
    "snapshot_rows": 1234,
    "snapshot_rows_left": 3000,
    "vnodes": 8,
    "vnodes_completed": 3,
    "changes_passed_on": 12345,
    "changes_held_back": 6,
    "changes_counted_since": "2026-01-01T00:00:00.000+00:00",
    "lag_bytes": 4096,
    "lag_seconds": 2,
    "retained_bytes": 5,
    "state_rows": 1000,
    "state_file_bytes": 2048,
}


def a_report() -> SourceReport:
    found = SourceReport.of(json.dumps({**SAID, "of a later release": 1}))
    assert found is not None
    return found


def test_it_is_shown_as_text() -> None:
    of = StreamProgress("orders", True, 7, a_report(), rows_per_second=50.0, lag_seconds=65.0)
    assert of.phase == "snapshot"
    assert of.seconds_left == 60.0
    assert repr(of).splitlines() == [
        '"public"."a<b"  query orders, batch 7',
        "phase snapshot (paused), 1,234 rows read, about 3,000 to go",
        "[███████████████·························] 3 of 8 vnodes, 37 %",
        "50 rows/s, about 1 min 0 s left",
        "behind 4.0 KiB and 1 min 5 s, log kept by the slot 5 B",
        "changes passed on 12,345, held back 6, counted since 2026-01-01T00:00:00.000+00:00",
        "last rows of 1,000 keys, file 2.0 KiB",
    ]


def test_rows_that_are_read_again_are_shown_too() -> None:
    found = SourceReport.of(json.dumps({"table": "t", "phase": "changes", "snapshot_rows": 8, "again_rows": 1234}))
    of = StreamProgress("q", True, 7, found)
    assert repr(of).splitlines()[1] == "phase changes, 8 rows read, 1,234 rows read again"


def test_the_bar_is_of_what_is_read_again_while_it_is() -> None:
    first = {"table": "t", "snapshot_rows": 8, "vnodes": 4, "vnodes_completed": 4}
    again = {"again_rows": 3, "again_vnodes": 8, "again_vnodes_completed": 2}
    under_way = StreamProgress("q", True, 7, SourceReport.of(json.dumps({**first, **again, "phase": "again"})))
    assert repr(under_way).splitlines()[2] == f"[{'█' * 10}{'·' * 30}] 2 of 8 vnodes, 25 %"
    assert '<progress value="2" max="8"></progress>' in under_way._repr_html_()
    over = StreamProgress("q", True, 8, SourceReport.of(json.dumps({**first, **again, "phase": "changes"})))
    assert repr(over).splitlines()[2] == f"[{'█' * 40}] 4 of 4 vnodes, 100 %"


def test_a_notebook_shows_it_with_a_bar_and_without_markup_of_the_tables_own() -> None:
    shown = StreamProgress("q", False, 7, a_report(), lag_seconds=0.0)._repr_html_()
    assert '<progress value="3" max="8"></progress>' in shown
    assert "&quot;a&lt;b&quot;  query q, batch 7, ended" in shown
    assert "a<b" not in shown


def test_before_the_first_batch_has_ended_it_starts() -> None:
    of = StreamProgress("q", True, None, None)
    assert (of.phase, of.seconds_left) == ("starting", None)
    assert repr(of) == "query q\nphase starting: no batch has been planned and ended yet"
    assert "<progress" not in of._repr_html_()


def test_sources_of_one_name_are_told_apart_in_their_order() -> None:
    names = ("a", "b", "a", "a")
    found = distinctly_named(SourceReport(name, "changes", snapshot_rows=at) for at, name in enumerate(names))
    assert [(each.table, each.snapshot_rows) for each in found] == [("a", 0), ("b", 1), ("a#2", 2), ("a#3", 3)]


@pytest.mark.parametrize("offset", [None, "", "null", "7", '{"phase": 1}', '{"v": 1, "table": "t"}', "not JSON"])
def test_other_sources_are_told_apart(offset: str | None) -> None:
    assert SourceReport.of(offset) is None
