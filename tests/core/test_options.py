"""Options one by one: the values that each takes and refuses, its default, and what is said of a misspelt one."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.errors import OptionsError
from backfill.options import (
    METADATA_COLUMNS,
    OPTIONS,
    OnExistingState,
    OnTruncate,
    Options,
    StartupMode,
    StreamOptions,
    parse,
)
from backfill.options.listed import CALLED_ELSEWHERE
from tests.core.given_options import NEEDED, parsed, problems


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
        ("url", "postgresql://db,[::1]:5433,[::2]/shop", "url", "postgresql://db,[::1]:5433,[::2]/shop"),
        ("url", "postgresql://℅@db/shop", "url", "postgresql://℅@db/shop"),
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
        ("url", "postgresql://caf\udce9@db/shop", "cannot be used; expected text in UTF-8"),
        ("dbtable", "caf\udce9", r"is 'caf\udce9'; expected text in UTF-8, and a locale that says so, such as LC_ALL="),
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
        ("maxBytesPerTrigger", "9223372036854775807", "or 1g, of 1048576g at the most"),
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


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_text_that_is_not_utf_8_is_refused(option: Any) -> None:
    """This holds for every option. Python makes a surrogate of such a byte of an argument, which `repr` shows."""
    with pytest.raises(
        OptionsError, match=rf"- {option.name} (is '/caf.udce9'|cannot be used); expected text in UTF-8"
    ):
        parse({**NEEDED, "stateDir": "/s", option.name: "/caf\udce9"}, streaming=True)


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


@pytest.mark.parametrize("name", ["provider", "owner", "location", "is_managed_location", "external"])
def test_what_spark_adds_by_itself_is_no_problem(name: str) -> None:
    assert parsed(**{name: "x"}) == parsed()


@pytest.mark.parametrize("url", ["postgresql://app@db/shop", "host=db dbname=shop"])
def test_a_url_is_read_without_the_blanks_around_it(url: str) -> None:
    assert parse({**NEEDED, "url": f" {url}\n"}).url == url


@given(st.dictionaries(st.sampled_from([option.name for option in OPTIONS]), st.text(max_size=20)))
def test_whatever_the_texts_are_they_are_taken_or_refused_as_options(given_options: dict[str, str]) -> None:
    with contextlib.suppress(OptionsError):
        parse(given_options)
