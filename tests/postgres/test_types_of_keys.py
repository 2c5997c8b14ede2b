"""Whether Arrow or the database compares keys, and with which SQL."""

from __future__ import annotations

import pytest
from psycopg import sql

from backfill.errors import OptionsError, TableError, UnsupportedTypeError
from backfill.upstream.postgres.description import (
    CollationDescription,
    Generated,
    KeyColumn,
    QualifiedName,
    TableDescription,
    TypeDescription,
)
from backfill.upstream.postgres.tables.keys import (
    Comparison,
    compare,
    key_column,
    key_literal,
    key_text_expression,
    order_by,
    ordered_locally,
)
from backfill.upstream.postgres.tables.selection import select_columns
from backfill.upstream.postgres.values.types import map_column
from tests.postgres.described import ENGLISH, C, array_of, column, key, numeric, stored

INT8 = stored(20, "int8")
TEXT = stored(25, "text")
UUID = stored(2950, "uuid")
DATE = stored(1082, "date")


@pytest.mark.parametrize(
    ("of", "collation", "override", "locally"),
    [
        *((stored(oid, name), None, None, True) for oid, name in [(20, "int8"), (26, "oid"), (16, "bool")]),
        *((stored(oid, name), None, None, True) for oid, name in [(17, "bytea"), (1184, "timestamptz")]),
        (UUID, None, None, True),
        (UUID, None, "STRING", True),
        (DATE, None, "STRING", False),
        (INT8, None, "STRING", False),
        (TEXT, C, None, True),
        (TEXT, ENGLISH, None, False),
        (stored(1042, "bpchar"), C, None, False),
        (stored(701, "float8"), None, None, False),
        (stored(1700, "numeric"), None, None, False),
        (numeric(12, 2), None, None, True),
        (numeric(12, 2), None, "STRING", False),
        (stored(869, "inet"), None, None, False),
        (stored(20000, "mood", kind="e"), None, None, False),
    ],
)
def test_arrow_compares_only_what_it_orders_as_the_database_does(
    of: TypeDescription, collation: CollationDescription | None, override: str | None, locally: bool
) -> None:
    described = key(of, collation=collation)
    assert ordered_locally(described, map_column(described.column, override)) is locally


def test_another_operator_class_is_for_the_database() -> None:
    described = key(INT8, default_order=False)
    assert not ordered_locally(described, map_column(described.column))


def test_a_key_that_is_a_name_of_an_object_is_refused() -> None:
    described = key(stored(2205, "regclass"))
    with pytest.raises(UnsupportedTypeError, match="'c' is a regclass"):
        ordered_locally(described, map_column(described.column))


def test_an_array_is_a_key_only_as_text() -> None:
    described = key(array_of(INT8))
    with pytest.raises(UnsupportedTypeError, match="c STRING"):
        ordered_locally(described, map_column(described.column))
    assert not ordered_locally(described, map_column(described.column, "STRING"))


def text_of(composed: sql.Composable) -> str:
    return composed.as_string(None)


def test_a_literal_carries_the_type_without_modifier_and_the_index_collation() -> None:
    assert text_of(key_literal(key(numeric(12, 2)), "1.50")) == """CAST('1.50' AS "pg_catalog"."numeric")"""
    assert text_of(key_literal(key(TEXT, collation=C), "it's \\ a")) == (
        """(CAST( E'it''s \\\\ a' AS "pg_catalog"."text") COLLATE "pg_catalog"."C")"""
    )


def test_a_column_is_collated_only_where_the_index_differs_from_it() -> None:
    keys = [key(TEXT, 'a"b', collation=C), key(TEXT, collation=C, own=ENGLISH), key(INT8, default_order=False)]
    assert text_of(order_by(keys, QualifiedName("s", "t"))) == (
        '"s"."t"."a""b", ("s"."t"."c" COLLATE "pg_catalog"."C"), "s"."t"."c" USING OPERATOR("pg_catalog".<)'
    )
    assert text_of(key_column(keys[0], QualifiedName("s", "t"))) == '"s"."t"."a""b"'


def test_the_text_of_a_key_is_that_of_its_output_function() -> None:
    assert text_of(key_text_expression(key(UUID), sql.Identifier("c"))) == (
        'pg_catalog.textin("pg_catalog"."uuid_out"("c"))'
    )


def compared(keys: list[KeyColumn], comparison: Comparison) -> str:
    left = [sql.Identifier(each.column.name) for each in keys]
    return text_of(compare(keys, left, comparison, [sql.SQL("x"), sql.SQL("y")][: len(keys)])).replace('"', "")


def test_keys_with_like_operators_are_compared_as_rows() -> None:
    assert compared([key(INT8, "a"), key(TEXT, "b")], "<=") == "(ROW(a, b) OPERATOR(pg_catalog.<=) ROW(x, y))"


def test_keys_with_operators_of_different_schemas_are_compared_column_by_column() -> None:
    keys = [key(INT8, "a"), key(stored(20001, "citext"), "b", schema="public")]
    at_least, greater, less = "OPERATOR(pg_catalog.>=)", "OPERATOR(pg_catalog.>)", "OPERATOR(public.>)"
    assert compared(keys, ">") == f"((a {at_least} x AND (a {greater} x OR b {less} y)))"
    assert compared(keys, "=") == "(a OPERATOR(pg_catalog.=) x AND b OPERATOR(public.=) y)"


def test_only_operator_characters_make_an_operator() -> None:
    with pytest.raises(ValueError, match="not the name of an operator"):
        QualifiedName("public", "<) OR (1").operator()


def table(**secret: Generated) -> TableDescription:
    columns = [column(INT8, "id"), column(TEXT, "name")]
    columns += [
        column(TEXT, name, generated=generated, logged=False, readable=generated is not Generated.NO)
        for name, generated in secret.items()
    ]
    return TableDescription(
        oid=20000,
        name=QualifiedName("public", "orders"),
        role="app",
        partitioned=False,
        replica_identity="d",
        columns=tuple(columns),
        key=(key(INT8, "id"),),
    )


def test_the_key_follows_the_selected_columns() -> None:
    assert [each.name for each in select_columns(table(), ["name"])] == ["name", "id"]
    assert [each.name for each in select_columns(table())] == ["id", "name"]


def test_an_unknown_column_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(OptionsError, match="has no column 'Name', did you mean 'name'"):
        select_columns(table(), ["Name"])


def test_columns_that_cannot_be_streamed_are_refused_together_with_those_that_can() -> None:
    with pytest.raises(TableError) as caught:
        select_columns(table(total=Generated.VIRTUAL, hidden=Generated.NO))
    assert "virtual generated column 'total'" in caught.value.message
    assert 'GRANT SELECT ("hidden") ON "public"."orders" TO "app"' in caught.value.message
    assert '.option("columns", "id, name")' in caught.value.message


def test_generated_columns_are_refused_in_one_clause_for_each_kind() -> None:
    computed = table(keyword01=Generated.STORED, total=Generated.VIRTUAL, keyword02=Generated.STORED)
    with pytest.raises(TableError) as caught:
        select_columns(computed)
    assert "the stored generated columns 'keyword01', 'keyword02'; the change" in caught.value.message
    assert "the virtual generated column 'total'. Leave them out" in caught.value.message
