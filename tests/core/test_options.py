"""Options: what each takes and refuses, all problems at once, and no secret in any text."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from backfill.errors import OptionsError
from backfill.options import (
    METADATA_COLUMNS,
    OPTIONS,
    OnExistingState,
    OnTruncate,
    Options,
    StartupMode,
    StreamOptions,
    View,
    parse,
    parse_view,
    reads_changes,
)
from backfill.options.listed import CALLED_ELSEWHERE

NEEDED = {"url": "postgresql://app@db/shop", "dbtable": "public.orders"}
SECRET = "hunter2-is-secret"  # noqa: S105 - a password for tests


def parsed(**options: str) -> Options:
    return parse({**NEEDED, **options})


def problems(**options: str) -> list[str]:
    """What is wrong, one text for each problem."""
    with pytest.raises(OptionsError) as caught:
        parse({**NEEDED, **options})
    head, *found = str(caught.value).split("\n  - ")
    assert head == "the backfill source cannot use its options:"
    return found


def stream(**changes: Any) -> StreamOptions:
    return dataclasses.replace(parsed().stream, **changes)


def test_two_options_are_enough_to_look_at_a_table() -> None:
    assert parsed() == Options(
        url="postgresql://app@db/shop",
        dbtable="public.orders",
        path="",
        key_columns=(),
        user="",
        password="",
        state_dir="",
        staging_dir="",
        columns=(),
        filter="",
        starting_position="",
        ending_position="",
        custom_schema=(),
        fail_on_data_loss=True,
        slot_name="",
        publication_name="",
        session_init_statement="",
        stream=StreamOptions(
            startup_mode=StartupMode.INITIAL,
            num_partitions=4,
            vnode_count=256,
            max_rows=2_000_000,
            max_bytes=1 << 30,
            on_truncate=OnTruncate.FAIL,
            on_existing_state=OnExistingState.FAIL,
            mark_unchanged=False,
        ),
    )


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("url", "postgres://db:5433/shop?sslmode=require", "url", "postgres://db:5433/shop?sslmode=require"),
        ("url", "host=db dbname=shop passfile=/run/pass", "url", "host=db dbname=shop passfile=/run/pass"),
        ("url", "service=shop", "url", "service=shop"),
        ("url", "host=db options='-c app.home=http://h/'", "url", "host=db options='-c app.home=http://h/'"),
        ("url", "postgresql://app:@db/shop", "url", "postgresql://app:@db/shop"),
        ("dbtable", '"My Schema"."Orders"', "dbtable", '"My Schema"."Orders"'),
        ("user", "app", "user", "app"),
        ("password", " with blanks ", "password", " with blanks "),
        ("stateDir", "/data/state", "state_dir", "/data/state"),
        ("stateDir", "/data/state", "staging_dir", "/data/state/staging"),
        ("stagingDir", "s3://bucket/staging", "staging_dir", "s3://bucket/staging"),
        ("stagingDir", "/shared/staging", "staging_dir", "/shared/staging"),
        ("stagingDir", "gs://anonymous@bucket/s?project_id=p", "staging_dir", "gs://anonymous@bucket/s?project_id=p"),
        ("stagingDir", "abfss://lake@a.dfs.core.windows.net/s", "staging_dir", "abfss://lake@a.dfs.core.windows.net/s"),
        ("stagingDir", "hdfs://app@namenode:8020/s", "staging_dir", "hdfs://app@namenode:8020/s"),
        ("columns", 'id, "Order Date" ,note', "columns", ("id", "Order Date", "note")),
        ("columns", 'Order Date,"a,b", "say ""hi"""', "columns", ("Order Date", "a,b", 'say "hi"')),
        ("customSchema", "price DECIMAL(38,10)", "custom_schema", (("price", "DECIMAL(38,10)"),)),
        (
            "customSchema",
            'price decimal( 38 , 10 ), "my note" string',
            "custom_schema",
            (("price", "DECIMAL(38,10)"), ("my note", "STRING")),
        ),
        ("customSchema", '"a,b" STRING, "q""q" STRING', "custom_schema", (("a,b", "STRING"), ('q"q', "STRING"))),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("failOnDataLoss", " true ", "fail_on_data_loss", True),
        ("slotName", "orders_1", "slot_name", "orders_1"),
        ("publicationName", "Orders", "publication_name", "Orders"),
        ("sessionInitStatement", "SET work_mem = '1GB'", "session_init_statement", "SET work_mem = '1GB'"),
    ],
)
def test_an_option_is_taken(option: str, text: str, field: str, value: object) -> None:
    assert getattr(parsed(**{option: text}), field) == value


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("startupMode", "LATEST", "startup_mode", StartupMode.LATEST),
        ("startupMode", "snapshot", "startup_mode", StartupMode.SNAPSHOT),
        ("numPartitions", "1", "num_partitions", 1),
        ("numPartitions", " 10000 ", "num_partitions", 10_000),
        ("vnodeCount", "65536", "vnode_count", 65_536),
        ("maxRowsPerTrigger", "1099511627776", "max_rows", 1 << 40),
        ("maxBytesPerTrigger", "268435456", "max_bytes", 268_435_456),
        ("maxBytesPerTrigger", "256m", "max_bytes", 256 << 20),
        ("maxBytesPerTrigger", "2 GB", "max_bytes", 2 << 30),
        ("maxBytesPerTrigger", "5kb", "max_bytes", 5 << 10),
        ("maxBytesPerTrigger", "17b", "max_bytes", 17),
        ("onTruncate", "emit", "on_truncate", OnTruncate.EMIT),
        ("onTruncate", "Ignore", "on_truncate", OnTruncate.IGNORE),
        ("onUnchangedToast", "mark", "mark_unchanged", True),
        ("onUnchangedToast", "fail", "mark_unchanged", False),
        ("metadataColumns", "all", "metadata", METADATA_COLUMNS),
        ("metadataColumns", "_Sequence, _change_type", "metadata", ("_change_type", "_sequence")),
        ("onExistingState", "resume", "on_existing_state", OnExistingState.RESUME),
        ("onExistingState", "restart", "on_existing_state", OnExistingState.RESTART),
    ],
)
def test_an_option_of_the_stream_is_taken(option: str, text: str, field: str, value: object) -> None:
    assert parsed(**{option: text}).stream == stream(**{field: value})


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("url", "jdbc:postgresql://db/shop", "cannot be used; expected a PostgreSQL URI or libpq connection string, w"),
        ("url", "mysql://db/shop", "cannot be used; expected a URI that begins with postgresql://"),
        ("url", "shop", "cannot be used; expected a URI such as postgresql://app@host:5432/shop, or a libpq"),
        ("url", "postgresql://[::1/shop", "cannot be used; expected a URI such as postgresql://app@host:5432/shop"),
        ("startupMode", "earliest", "is 'earliest'; expected one of initial, latest, snapshot"),
        ("columns", "id,,note", "is 'id,,note'; expected distinct column names, separated by commas"),
        ("columns", "id,id", "is 'id,id'; expected distinct column names"),
        ("customSchema", "price", "is 'price'; expected distinct columns and their types, such as: price DECIMAL(38"),
        ("customSchema", "price DOUBLE PRECISION", "expected distinct columns and their types"),
        ("customSchema", "`my note` STRING", 'such as: price DECIMAL(38,10), "my note" STRING'),
        ("customSchema", "a STRING, a STRING", "expected distinct columns and their types"),
        ("customSchema", 'a STRING, "a" STRING', "expected distinct columns and their types"),
        ("numPartitions", "0", "is '0'; expected a whole number from 1 to 10000"),
        ("numPartitions", "10001", "is '10001'; expected a whole number from 1 to 10000"),
        ("numPartitions", "four", "is 'four'; expected a whole number"),
        ("numPartitions", "1.5", "is '1.5'; expected a whole number"),
        ("vnodeCount", "65537", "expected a whole number from 1 to 65536"),
        ("maxRowsPerTrigger", "-1", "expected a whole number from 1 to 1099511627776"),
        ("maxRowsPerTrigger", "1_000", "is '1_000'; expected a whole number from 1 to 1099511627776"),
        ("maxRowsPerTrigger", "٣", "expected a whole number from 1 to 1099511627776"),
        ("maxRowsPerTrigger", "9" * 5000, "expected a whole number from 1 to 1099511627776"),
        ("maxBytesPerTrigger", "9" * 5000, "expected a size such as 268435456, 256m or 1g"),
        ("stateMemory", "9" * 5000, "expected a size such as 268435456, 256m or 1g"),
        ("maxBytesPerTrigger", "0", "is '0'; expected a size such as 268435456, 256m or 1g"),
        ("maxBytesPerTrigger", "1t", "expected a size"),
        ("maxBytesPerTrigger", "-1m", "expected a size"),
        ("failOnDataLoss", "yes", "is 'yes'; expected true or false"),
        ("onTruncate", "drop", "is 'drop'; expected one of fail, emit, ignore"),
        ("onUnchangedToast", "emit", "expected one of fail, mark"),
        ("onExistingState", "reuse", "expected one of fail, resume, restart"),
        (
            "metadataColumns",
            "_change_type,",
            "is '_change_type,'; expected all, none, or some of _change_type, _is_snap",
        ),
        (
            "metadataColumns",
            "_op",
            "is '_op'; expected all, none, or some of _change_type, _is_snapshot, _commit_version",
        ),
        ("metadataColumns", "_sequence, _sequence", "expected all, none, or some of"),
        ("metadataColumns", "all, _sequence", "expected all, none, or some of"),
        ("slotName", "Orders", "is 'Orders'; expected 1 to 63 lower-case letters, digits and underscores"),
        ("slotName", "a" * 64, "expected 1 to 63 lower-case letters"),
        ("stateDir", "state", "is 'state'; expected an absolute path"),
        ("stateDir", "s3://bucket/state", "is a URI; expected a local path of the driver"),
        ("stateDir", "/data/state?", "is '/data/state?'; expected a path without ? and"),
        ("stateDir", "/data\\state", "; expected a path without ? and"),
        ("stagingDir", "staging", "is 'staging'; expected an absolute path"),
    ],
)
def test_an_option_is_refused_with_what_it_got_and_what_is_allowed(option: str, text: str, problem: str) -> None:
    (found,) = problems(**{option: text})
    assert found.startswith(option)
    assert problem in found


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.default], ids=lambda option: option.name)
@pytest.mark.parametrize("blank", ["", "  "])
def test_an_option_with_a_default_is_not_blank(option: Any, blank: str) -> None:
    (found,) = problems(**{option.name: blank})
    assert found.startswith(f"{option.name} is {blank!r}; expected ")


@pytest.mark.parametrize(
    "option",
    [option for option in OPTIONS if option.default == "" and option.may_be_blank and option.name not in NEEDED],
    ids=lambda it: it.name,
)
def test_an_option_without_a_default_may_be_blank(option: Any) -> None:
    assert parsed(**{option.name: "  "}) == parsed()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_default_is_a_value_the_option_takes(option: Any) -> None:
    if option.default:
        assert parsed(**{option.name: option.default}) == parsed()
    assert option.meaning


@pytest.mark.parametrize("missing", NEEDED)
@pytest.mark.parametrize("blank", [None, "", "  "])
def test_a_required_option_is_asked_for(missing: str, blank: str | None) -> None:
    given = {**NEEDED, missing: blank} if blank is not None else {k: v for k, v in NEEDED.items() if k != missing}
    with pytest.raises(OptionsError, match=f"- {missing} is required: "):
        parse({name: text for name, text in given.items() if text is not None})


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/data/orders/", "/data/orders"),
        ("file:/data/my orders", "/data/my orders"),
        ("file:///data/orders", "/data/orders"),
        ("s3://bucket/orders", "s3://bucket/orders"),
        ("abfss://lake@account.dfs.core.windows.net/orders", "abfss://lake@account.dfs.core.windows.net/orders"),
    ],
)
def test_a_delta_table_is_named_by_its_path_and_the_columns_of_its_key(path: str, kept: str) -> None:
    found = parse({"path": path, "keyColumns": "region, id"})
    assert (found.path, found.key_columns, found.url) == (kept, ("region", "id"), "")


def test_a_delta_table_and_a_table_of_a_database_are_told_apart() -> None:
    for wrong, problem in (
        ({}, "url is required.*Or path, for a Delta table"),
        ({**NEEDED, "path": "/data"}, "path is of a Delta table, and url and dbtable are of a database"),
        ({"path": "/data"}, "keyColumns is required with path"),
        ({"path": "data", "keyColumns": "id"}, "path is 'data'; expected an absolute path, or a URI"),
        ({"path": "/data/a%20b", "keyColumns": "id"}, "expected a path without % before two hexadecimal digits"),
        ({"path": "s3://key:secret@bucket/orders", "keyColumns": "id"}, "expected a URI without credentials"),
        ({"path": "abfss://lake/orders?sig=secret", "keyColumns": "id"}, "expected a URI without credentials"),
        ({"path": "/data", "keyColumns": "id", "slotName": "s", "user": "u"}, "user, slotName is for PostgreSQL"),
        ({**NEEDED, "keyColumns": "id"}, "keyColumns is for a Delta table"),
    ):
        with pytest.raises(OptionsError, match=problem) as caught:
            parse(wrong)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:secret@bucket/staging",
        "s3://secret@bucket/staging",
        "s3://key:sec/ret@bucket/staging",
        "s3://[secret@bucket",
        "s3://bucket/staging?access_key=key&secret_key=secret",
        "s3://bucket/staging?Session_Token=secret",
        "gs://secret@bucket/staging",
        "abfss://container:secret@account.dfs.core.windows.net/staging",
        "abfss://:secret@account.blob.core.windows.net/staging",
        "abfss://container@account.dfs.core.windows.net/staging?client_secret=secret",
        "abfss://container@account.dfs.core.windows.net/staging?sv=2024&sig=secret",
    ],
)
def test_no_credentials_stand_in_the_place_of_staged_chunks(uri: str) -> None:
    (found,) = problems(stagingDir=uri)
    assert found.startswith("stagingDir cannot be used; expected a URI ")
    assert "secret" not in found


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3a://bucket/staging", "s3:// in place of s3a://"),
        ("wasbs://lake@a.blob.core.windows.net/s", "abfss:// in place of wasbs://"),
        ("dbfs:///staging", "an absolute path, or a URI that pyarrow.fs opens: file://, s3://"),
        ("S3://bucket/staging", "an absolute path, or a URI that pyarrow.fs opens: file://, s3://"),
    ],
)
def test_staged_chunks_have_a_place_that_arrow_knows(uri: str, expected: str) -> None:
    (found,) = problems(stagingDir=uri)
    assert found.startswith(f"stagingDir cannot be used; expected {expected}")
    with pytest.raises(pa.ArrowInvalid, match="Unrecognized filesystem type"):
        fs.FileSystem.from_uri(uri)


def test_a_stream_needs_a_folder_for_its_state() -> None:
    with pytest.raises(OptionsError, match="stateDir is required for a stream"):
        parse(NEEDED, streaming=True)
    assert parse({**NEEDED, "stateDir": "/s"}, streaming=True).state_dir == "/s"


@pytest.mark.parametrize("option", [{"changelog": "full"}, {"envelope": "upsert"}])
@pytest.mark.parametrize("mode", ["latest", "snapshot"])
def test_last_rows_are_kept_from_the_snapshot_on(option: dict[str, str], mode: str) -> None:
    assert parsed(**option).stream.last_rows is not None
    (found,) = problems(**option, startupMode=mode)
    assert found.startswith("changelog=full and envelope=upsert follow a table from its snapshot on")


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
    """A Delta table needs no slot, of which startupMode=snapshot would be refused."""
    given = {"path": "/lake/orders", "keyColumns": "id", "startingPosition": "0", "startupMode": mode}
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


def test_all_problems_are_told_at_once() -> None:
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


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("numPartition", "numPartitions"),
        ("table", "dbtable"),
        ("maxRowsTrigger", "maxRowsPerTrigger"),
        ("statedirectory", "stateDir"),
        ("startingMode", "startupMode"),
        ("slot_name", "slotName"),
        ("passwort", "password"),
        ("query", "dbtable"),
        ("startingOffsets", "startupMode"),
        ("maxFilesPerTrigger", "maxRowsPerTrigger"),
    ],
)
def test_a_near_miss_is_recognised(typed: str, meant: str) -> None:
    assert problems(**{typed: "1"}) == [f"unknown option {typed}; did you mean {meant}?"]


def test_what_is_called_otherwise_elsewhere_is_an_option_here_under_another_name() -> None:
    names = {option.name for option in OPTIONS}
    assert set(CALLED_ELSEWHERE.values()) <= names
    assert not {name.lower() for name in names} & CALLED_ELSEWHERE.keys()


def test_an_option_like_no_other_gets_the_list_of_all() -> None:
    (found,) = problems(kafka="x")
    assert found == f"unknown option kafka; known are {', '.join(option.name for option in OPTIONS)}"


@given(st.sampled_from([option for option in OPTIONS if option.may_be_blank]), st.randoms())
def test_names_may_be_written_in_any_case(option: Any, random: Any) -> None:
    name = "".join(random.choice([letter.upper(), letter.lower()]) for letter in option.name)
    text = {"url": NEEDED["url"], "dbtable": NEEDED["dbtable"]}.get(option.name, option.default)
    assert parse({**{k: v for k, v in NEEDED.items() if k != option.name}, name: text}) == parsed()


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
        ({**CHANGES, "snapshotFilter": "id > 1"}, "snapshotFilter is for a stream; leave it out, and use where()"),
        ({**CHANGES, "failOnDataLoss": "false"}, "failOnDataLoss=false is for a stream"),
        ({**CHANGES, "changelog": "full"}, "changelog=full and envelope=upsert take a stream's last rows"),
        ({**CHANGES, "startupMode": "snapshot"}, "startupMode=snapshot reads no change log"),
    ],
)
def test_what_does_not_go_with_positions_is_named(options: dict[str, str], problem: str) -> None:
    (found,) = problems(**options)
    assert found.startswith(problem)


def test_a_table_of_spark_that_keeps_a_filter_for_its_stream_gives_all_changes() -> None:
    assert parsed(**CHANGES, snapshotFilter="id > 1", stateDir="/s").starting_position == "0/16B2D80"


def test_positions_are_for_batches_of_the_table() -> None:
    given = {**NEEDED, **CHANGES, "stateDir": "/s", "endingPosition": "latest"}
    with pytest.raises(OptionsError, match=r"- startingPosition is for spark\.read.*\n.*- endingPosition is for"):
        parse(given, streaming=True)
    with pytest.raises(OptionsError, match="leave out startingPosition and endingPosition"):
        parse_view({**given, "view": "summary"})


def test_a_snapshot_filter_is_for_streams_that_read_a_snapshot() -> None:
    assert parsed(snapshotFilter=" id > 1 ", stateDir="/s").stream.snapshot_filter == "id > 1"
    with pytest.raises(OptionsError, match="- startupMode=latest reads no snapshot; leave out snapshotFilter"):
        parse({**NEEDED, "stateDir": "/s", "snapshotFilter": "id > 1", "startupMode": "latest"}, streaming=True)
    with pytest.raises(OptionsError, match="- onUnchangedToast=mark stands for a value that came before"):
        parse({**NEEDED, "stateDir": "/s", "snapshotFilter": "id > 1", "onUnchangedToast": "mark"}, streaming=True)


def test_a_view_needs_no_more_than_a_state_directory() -> None:
    assert parse_view({"stateDir": "/s", "VIEW": "Summary"}) == (View.SUMMARY, "/s")
    assert parse_view({**NEEDED, "view": "progress", "stateDir": "/s"}) == (View.PROGRESS, "/s")
    assert parse_view(NEEDED) is None
    for wrong, problem in (
        ({"view": "progress"}, "stateDir is required for a view"),
        ({"view": "progress", "stateDir": "/s", "url": "postgresql://app:x@db/shop"}, "url cannot be used"),
        ({"view": "lag", "stateDir": "/s"}, "view is 'lag'; expected one of progress, summary"),
        ({"view": "progress", "stateDir": "here"}, "stateDir is 'here'; expected an absolute path"),
    ):
        with pytest.raises(OptionsError, match=problem):
            parse_view(wrong)


@pytest.mark.parametrize("name", ["provider", "owner", "location", "is_managed_location", "external"])
def test_what_spark_adds_by_itself_is_no_problem(name: str) -> None:
    assert parsed(**{name: "x"}) == parsed()


# -- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["password", "sessionInitStatement"])
def test_what_may_be_secret_is_in_no_representation(name: str) -> None:
    options = parsed(**{name: SECRET})
    assert SECRET in (options.password, options.session_init_statement)
    assert SECRET not in repr(options)
    assert SECRET not in repr(pickle.loads(pickle.dumps(options)))  # noqa: S301 - our own bytes
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301


@pytest.mark.parametrize("url", ["postgresql://app@db/shop", "host=db dbname=shop"])
def test_a_url_is_read_without_the_blanks_around_it(url: str) -> None:
    assert parse({**NEEDED, "url": f" {url}\n"}).url == url


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{SECRET}@db/shop",
        f"postgresql://db/shop?user=app&password={SECRET}",
        f"postgresql://db/shop?sslpassword={SECRET}",
        f"postgresql://db/shop?oauth_client_secret={SECRET}",
        f"host=db password={SECRET}",
        f"password = '{SECRET}' host=db",
        f"host='db'password={SECRET}",
        f"host=db sslpassword={SECRET}",
        f"host=db oauth_client_secret={SECRET}",
        f"host=db scram_client_key={SECRET}",
        f"postgresql://db/shop?scram_server_key={SECRET}",
        f"mysql://app:{SECRET}@db/shop",
        f"jdbc:postgresql://db/shop?password={SECRET}",
        f"postgresql://app:#{SECRET}@db/shop",
        f"postgresql://app:?{SECRET}@db/shop",
        f"postgresql://app:{SECRET}/x@db/shop",
        f"postgresql://app@db/shop#?password={SECRET}",
        f"postgresql://app:{SECRET}\N{ACCOUNT OF}@db/shop",
        f"postgresql://app:{SECRET}@[db/shop",
        f"app:{SECRET}@db",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse({**NEEDED, "url": url})
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_password_is_not_repeated_where_other_options_are_wrong() -> None:
    assert SECRET not in str(problems(password=SECRET, numPartitions="x", pass_word=SECRET))


@given(st.dictionaries(st.sampled_from([option.name for option in OPTIONS]), st.text(max_size=20)))
def test_whatever_the_texts_are_they_are_taken_or_refused_as_options(given_options: dict[str, str]) -> None:
    with contextlib.suppress(OptionsError):
        parse(given_options)
