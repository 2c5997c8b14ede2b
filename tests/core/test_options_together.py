"""Options that need or exclude each other: of a stream, of a batch read, of a view."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.errors import OptionsError
from backfill.options import OPTIONS, View, parse, parse_view, reads_changes
from tests.core.given_options import NEEDED, parsed, problems


def test_a_stream_needs_a_folder_for_its_state() -> None:
    with pytest.raises(OptionsError, match="stateDir is required for a stream"):
        parse(NEEDED, streaming=True)
    assert parse({**NEEDED, "stateDir": "/s"}, streaming=True).state_dir == "/s"


@pytest.mark.parametrize("option", [{"changelog": "full"}, {"envelope": "upsert"}])
@pytest.mark.parametrize("mode", ["latest", "snapshot"])
def test_last_rows_are_kept_from_the_snapshot_on(option: dict[str, str], mode: str) -> None:
    assert parsed(**option).stream.last_rows is not None
    (found,) = problems(**option, startupMode=mode)
    assert found.startswith("changelog=full and envelope=upsert need startupMode=initial")


@pytest.mark.parametrize(
    ("given", "follows"),
    [
        ({}, False),
        ({"stateDir": "/s"}, True),
        ({"stateDir": "/s", "startupMode": "latest"}, True),
        ({"stateDir": "/s", "startupMode": "snapshot"}, False),
        ({"startingPosition": "earliest", "slotName": "s"}, True),
    ],
)
def test_a_read_of_the_table_alone_follows_nothing(given: dict[str, str], follows: bool) -> None:
    assert parse({**NEEDED, **given}).follows is follows


def test_an_order_is_for_upserts() -> None:
    last_rows = parsed(envelope="upsert", orderColumn="at").stream.last_rows
    assert last_rows is not None
    assert last_rows.order_column == "at"
    (found,) = problems(changelog="full", orderColumn="at")
    assert found == "orderColumn is for envelope=upsert; set that, or leave orderColumn out"


def test_a_snapshot_alone_reads_no_change_log() -> None:
    (found,) = problems(startupMode="snapshot", slotName="s")
    assert "leave out slotName and publicationName" in found
    assert problems(startupMode="snapshot", publicationName="P") == [found]


@pytest.mark.parametrize("chosen", ["none", "_sequence,_commit_version"])
def test_only_rows_that_are_all_inserts_do_without_their_change_type(chosen: str) -> None:
    alone = {**NEEDED, "stateDir": "/s", "metadataColumns": chosen}
    assert "_change_type" not in parse({**alone, "startupMode": "snapshot"}, streaming=True).stream.metadata
    changes = {**NEEDED, "startingPosition": "earliest", "slotName": "s", "metadataColumns": chosen}
    for wrong, streaming in ((alone, True), (alone, False), (changes, False)):
        with pytest.raises(OptionsError, match="- metadataColumns leaves out _change_type, without which a deleted ro"):
            parse(wrong, streaming=streaming)
    assert parse({**NEEDED, "metadataColumns": chosen}).has_metadata is False


@pytest.mark.parametrize("mode", ["initial", "snapshot"])
def test_no_way_of_starting_a_stream_lets_changes_be_read_without_their_change_type(mode: str) -> None:
    """A table of Spark's catalog keeps `startupMode` for its streams, and a read of changes is given it, too."""
    given = {"path": "/lake/orders", "keyColumns": "id", "startingPosition": "0", "startupMode": mode, "stateDir": "/s"}
    with pytest.raises(OptionsError) as caught:
        parse({**given, "metadataColumns": "none"})
    assert str(caught.value).endswith("looks like an inserted one; name it as well")
    assert parse({**given, "metadataColumns": "_change_type"}).stream.metadata == ("_change_type",)


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        ("path", {"path": "data", "keyColumns": "id", "startingPosition": "3"}),
        ("envelope", {**NEEDED, "stateDir": "/s", "envelope": "upserts", "orderColumn": "at"}),
        ("startupMode", {**NEEDED, "stateDir": "/s", "startupMode": "snapshots", "metadataColumns": "none"}),
    ],
)
def test_nothing_follows_from_a_value_that_is_wrong_by_itself(wrong: str, options: dict[str, str]) -> None:
    with pytest.raises(OptionsError, match=rf"its options:\n  - {wrong} is '.*'; expected [^\n]*$"):
        parse(options)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(OptionsError) as caught:
        parse(
            {
                "url": "jdbc:postgresql://db/shop",
                "numPartition": "4",
                "vnodeCount": "many",
                "onTruncate": "maybe",
                "stagingDir": "here",
            },
            streaming=True,
        )
    found = str(caught.value).split("\n  - ")[1:]
    assert [text.split()[0] for text in found] == [
        *("unknown", "url", "vnodeCount", "onTruncate", "dbtable", "stateDir", "stagingDir")
    ]


def test_a_filter_and_a_view_are_for_batches() -> None:
    assert parsed(filter="id > 1", stateDir="/s").filter == "id > 1"
    for name, value in (("filter", "id > 1"), ("view", "progress")):
        with pytest.raises(OptionsError, match=rf"- {name} is for spark\.read"):
            parse({**NEEDED, "stateDir": "/s", name: value}, streaming=True)


CHANGES = {"startingPosition": "0/16B2D80", "slotName": "s"}


def test_the_changes_between_two_positions_are_asked_for_by_where_they_begin() -> None:
    found = parsed(**CHANGES, endingPosition="latest", stateDir="/s", numPartitions="8")
    assert (found.starting_position, found.ending_position, found.has_metadata) == ("0/16B2D80", "latest", True)
    assert reads_changes({"startingposition": "earliest"})
    assert not reads_changes({"startingPosition": " ", "endingPosition": "latest"})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingPosition": "earliest"}, "startingPosition needs slotName"),
        ({"endingPosition": "latest"}, "endingPosition needs startingPosition"),
        ({"startingPosition": " "}, "startingPosition is blank; leave it out, or give it a value"),
        ({**CHANGES, "filter": "id > 1"}, "filter is for the table as it is now, not for changes"),
        (
            {**CHANGES, "snapshotFilter": "id > 1"},
            "snapshotFilter is for a stream, which needs readStream; leave it out to read changes, where where() ch",
        ),
        ({**CHANGES, "failOnDataLoss": "false"}, "failOnDataLoss=false is for a stream"),
        ({**CHANGES, "changelog": "full"}, "changelog=full and envelope=upsert need the last rows"),
        (
            {**CHANGES, "startupMode": "latest"},
            "startupMode is for a stream, which needs readStream; leave it out to read changes",
        ),
        (
            {**CHANGES, "startupMode": "snapshot"},
            "startupMode is for a stream, which needs readStream; leave it out to read changes",
        ),
    ],
)
def test_what_does_not_go_with_positions_is_named(options: dict[str, str], problem: str) -> None:
    (found,) = problems(**options)
    assert found.startswith(problem)


@pytest.mark.parametrize("of_a_stream", [{"snapshotFilter": "id > 1"}, {"startupMode": "snapshot"}])
def test_what_a_table_of_spark_keeps_for_its_stream_is_not_asked_of_changes(of_a_stream: dict[str, str]) -> None:
    given = {**NEEDED, **CHANGES, **of_a_stream, "stateDir": "/s"}
    assert parse(given, asked=CHANGES).starting_position == "0/16B2D80"
    with pytest.raises(OptionsError, match="is for a stream, which needs readStream; leave it out to read changes"):
        parse(given, asked=[*CHANGES, *of_a_stream])


def test_a_batch_with_the_columns_of_a_stream_is_not_taken_for_its_snapshot() -> None:
    given = {**NEEDED, "stateDir": "/s", "startupMode": "snapshot", "snapshotFilter": "id > 1", "onTruncate": "emit"}
    wrong = (
        "- startupMode, snapshotFilter is for a stream, which needs readStream; leave it out .*, where filter chooses"
    )
    with pytest.raises(OptionsError, match=wrong):
        parse(given, asked=given)
    with pytest.raises(OptionsError, match="startupMode=snapshot for a stream, or leave out stateDir for a batch"):
        parse({**NEEDED, "stateDir": "/s", "metadataColumns": "none"})
    assert parse(given, asked=["stateDir", "onTruncate"]).state_dir == "/s"
    assert parse(given, streaming=True).state_dir == "/s"


def test_positions_are_for_batches_of_the_table() -> None:
    given = {**NEEDED, **CHANGES, "stateDir": "/s", "endingPosition": "latest"}
    with pytest.raises(OptionsError, match=r"- startingPosition is for spark\.read.*\n.*- endingPosition is for"):
        parse(given, streaming=True)
    with pytest.raises(OptionsError, match="not a table; leave out startingPosition, endingPosition, filter"):
        parse_view({**given, "view": "summary", "filter": "id > 1"})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"changelog": "full"}, "changelog is for a stream, which needs stateDir as well"),
        ({"envelope": "upsert", "orderColumn": "v"}, "envelope, orderColumn is for a stream"),
        ({"startupMode": "snapshot", "onTruncate": "emit"}, "startupMode, onTruncate is for a stream"),
        ({"onUnchangedToast": "mark"}, "leave it out to read the table as it is now"),
        ({"snapshotFilter": "id > 1"}, "leave it out to read the table as it is now, where filter chooses rows"),
    ],
)
def test_a_read_of_the_table_alone_is_not_taken_for_a_stream(options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionsError, match=named):
        parse({**NEEDED, **options}, asked=options)
    assert parse({**NEEDED, **options}, asked=NEEDED).url


def test_options_that_do_not_say_what_is_read_may_be_those_of_a_stream() -> None:
    options = {option.name: option.default for option in OPTIONS if option.name not in NEEDED and option.may_be_blank}
    given = {"maxRowsPerTrigger": "9", "onExistingState": "resume", "stageBeforeEmit": "true", "stagingDir": "/s"}
    assert parse({**options, **given, **NEEDED}, asked=[*options, *given]).stream.max_rows == 9


def test_a_snapshot_filter_is_for_streams_that_read_a_snapshot() -> None:
    assert parsed(snapshotFilter=" id > 1 ", stateDir="/s").stream.snapshot_filter == "id > 1"
    with pytest.raises(OptionsError, match="- startupMode=latest reads no snapshot; leave out snapshotFilter"):
        parse({**NEEDED, "stateDir": "/s", "snapshotFilter": "id > 1", "startupMode": "latest"}, streaming=True)
    with pytest.raises(OptionsError, match="- onUnchangedToast=mark refers to a value that came before"):
        parse({**NEEDED, "stateDir": "/s", "snapshotFilter": "id > 1", "onUnchangedToast": "mark"}, streaming=True)


def test_a_view_needs_no_more_than_a_state_directory() -> None:
    assert parse_view({"stateDir": "/s", "VIEW": "Summary"}) == (View.SUMMARY, Path("/s"))
    assert parse_view({**NEEDED, "view": "progress", "stateDir": "/s"}) == (View.PROGRESS, Path("/s"))
    assert parse_view(NEEDED) is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"view": "progress"}, "stateDir is required for a view"),
        ({"view": "progress", "stateDir": "/s", "url": "postgresql://app:x@db/shop"}, "url cannot be used"),
        ({"view": "lag", "stateDir": "/s"}, "view is 'lag'; expected one of progress, summary"),
        ({"view": "progress", "stateDir": "here"}, "stateDir is 'here'; expected an absolute path"),
    ],
)
def test_a_view_that_cannot_be_shown_is_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionsError, match=problem):
        parse_view(options)
