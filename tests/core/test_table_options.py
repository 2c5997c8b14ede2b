"""The options that a table of Spark's catalog keeps, and those that it gives back."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from backfill.errors import OptionsError
from backfill.options import parse
from backfill.spark.table_options import carrying, keeps_options, of_new_table, of_table, with_columns

COLUMNS = StructType([StructField("id", LongType()), StructField("v", StringType())])
SECRET = "hunter2-is-secret"  # noqa: S105 - a password for tests
GIVEN = {"url": "postgresql://app@db/shop", "dbTable": "orders"}


def created(**options: str) -> dict[str, str]:
    """Returns what Spark passes for CREATE TABLE: each option twice, properties once, and words of its own."""
    doubled = {f"option.{name}": value for name, value in options.items()}
    return {**options, **doubled, "provider": "backfill", "owner": "root", "a.property": "x"}


def test_the_options_of_a_new_table_are_those_of_the_options_clause() -> None:
    assert of_new_table(created(**GIVEN)) == GIVEN
    assert of_new_table(GIVEN) is None


def test_a_table_at_a_place_is_the_delta_table_there() -> None:
    """Spark takes a path out of the options and makes it the table's place."""
    place = {"location": "file:/data/orders", "path": "file:/data/orders"}
    assert of_new_table({**created(keyColumns="id"), **place}) == {"keyColumns": "id", "path": "file:/data/orders"}
    assert of_new_table({**created(**GIVEN), **place}) == GIVEN
    assert of_table(COLUMNS, {"path": "/data/orders"}) == {"path": "/data/orders"}


def test_a_table_gives_back_its_options_and_what_a_read_says_goes_first() -> None:
    columns = carrying(COLUMNS, GIVEN)
    assert columns.names == COLUMNS.names
    assert keeps_options(columns)
    assert of_table(columns, {}) == {"url": GIVEN["url"], "dbtable": "orders"}
    assert of_table(columns, {"DBTABLE": "others"}) == {"url": GIVEN["url"], "dbtable": "others"}
    altered = StructType([columns.fields[1], columns.fields[0]])
    assert of_table(altered, {}) == of_table(columns, {})
    assert of_table(columns, {"columns": "", "customSchema": ""})["columns"] == ""


def test_a_declared_list_of_columns_keeps_nothing_and_is_told_apart_from_no_table() -> None:
    assert not keeps_options(COLUMNS)
    assert of_table(COLUMNS, GIVEN) == {"url": GIVEN["url"], "dbtable": "orders"}
    with pytest.raises(OptionsError, match="made with a list of columns, or with TBLPROPERTIES instead of OPTIONS"):
        of_table(COLUMNS, {"numPartitions": "2"})


@pytest.mark.parametrize("name", ["password", "PASSWORD", "sessionInitStatement"])
def test_what_may_be_secret_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(
        OptionsError, match=r"may not have the options (password|sessionInitStatement), because"
    ) as caught:
        of_new_table(created(**GIVEN, **{name: SECRET}))
    assert SECRET not in str(caught.value)


def test_what_is_kept_is_one_text_for_the_same_options() -> None:
    one = carrying(COLUMNS, GIVEN)
    other = carrying(COLUMNS, dict(reversed(GIVEN.items())))
    assert json.dumps(one.jsonValue()) == json.dumps(other.jsonValue())


@pytest.mark.parametrize(("columns", "of_spark"), [("", True), ("v", True), ("id, v", False)])
def test_columns_that_custom_schema_leaves_out_have_the_default_types(columns: str, of_spark: bool) -> None:
    """The option is blamed for a missing column only where it names it."""
    options = with_columns(parse({**GIVEN, "columns": columns}), COLUMNS)
    assert options.columns == ("id", "v")
    assert options.columns_of_spark is of_spark


def test_the_type_of_a_column_that_spark_has_dropped_is_dropped_with_it() -> None:
    """Where a read gives the columns itself, a name that is none of them is a mistake, and stays."""
    options = parse({**GIVEN, "customSchema": "id STRING, price DECIMAL(38,10)"})
    assert with_columns(options, carrying(COLUMNS, GIVEN)).custom_schema == (("id", "STRING"),)
    assert with_columns(options, COLUMNS).custom_schema == options.custom_schema
