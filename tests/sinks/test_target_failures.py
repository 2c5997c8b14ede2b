"""PostgreSQL's errors about a sink's table are not told as the source's."""

from __future__ import annotations

import re

import pytest

from backfill.errors import BackfillError, DatabaseSetupError, TableError, TableLockedError, ValueOutOfRangeError
from backfill.sinks.postgres.failures import about_target
from backfill.upstream.postgres.session.failures import translated
from tests.postgres.raised import VALUE, from_adbc, from_psycopg


@pytest.mark.parametrize(
    ("state", "text", "kind", "advice"),
    [
        ("55P03", "canceling statement due to lock timeout", TableLockedError, "a lock on the sink's table"),
        ("22021", 'invalid byte sequence for encoding "UTF8": 0x00', ValueOutOfRangeError, r"U\+0000"),
        ("22P02", f'invalid input value for enum colour: "{VALUE}"', TableError, "ADD VALUE there"),
        ("22P02", f'invalid input syntax for type uuid: "{VALUE}"', TableError, "column of the sink's table"),
        ("42501", "permission denied for table copy", DatabaseSetupError, "refused a statement on"),
        ("42501", 'query would be affected by row-level security policy for table "copy"', TableError, "BYPASSRLS"),
        ("42703", 'column "note" does not exist', DatabaseSetupError, "refused a statement on"),
        ("22012", "division by zero", DatabaseSetupError, "refused a statement on"),
        ("53400", "temporary file size exceeds temp_file_limit (64kB)", DatabaseSetupError, "refused a statement on"),
        ("22003", "integer out of range", TableError, "column of the sink's table .* ALTER COLUMN … TYPE"),
        ("22001", "value too long for type character varying(4)", TableError, "column of the sink's table"),
        ("22007", f'invalid input syntax for type date: "{VALUE}"', TableError, "column of the sink's table"),
        ("23502", 'null value in column "v" violates not-null constraint', TableError, "of the sink's table"),
        ("23503", 'insert on "copy" violates foreign key constraint "f"', TableError, "DEFERRABLE INITIALLY DEFERRED"),
        ("23505", 'duplicate key value violates unique constraint "u"', TableError, "DEFERRABLE INITIALLY DEFERRED"),
        ("23514", 'new row violates check constraint "c"', TableError, "of the sink's table"),
        ("23514", 'no partition of relation "copy" found for row', TableError, "Make one .* PARTITION OF … DEFAULT"),
        (
            "21000",
            "ON CONFLICT DO UPDATE command cannot affect row a second time",
            TableError,
            "by its type or its coll",
        ),
        ("23P01", 'conflicting key value violates exclusion constraint "x"', TableError, "of the sink's table"),
    ],
    ids=lambda item: str(item)[:30],
)
def test_an_error_of_a_sinks_table_is_not_reported_as_the_sources(
    state: str, text: str, kind: type[BackfillError], advice: str
) -> None:
    adbc = f"INTERNAL: [libpq] Failed to execute query: ERROR:  {text}\nQuery: SELECT {VALUE}"
    for error in (from_psycopg(state, text), from_adbc(state, adbc), from_adbc(state, adbc, text)):
        found = translated(error, about_target)
        assert type(found) is kind
        assert re.search(advice, found.message)
        assert not re.search("option|onExistingState|change log|of the stream", found.message)
        assert VALUE not in found.message


@pytest.mark.parametrize("state", ["P0001", "P0004"])
def test_what_a_trigger_of_a_sinks_table_says_is_left_to_the_servers_log(state: str) -> None:
    for error in (from_psycopg(state, f"bad {VALUE}"), from_adbc(state, f"ERROR:  bad {VALUE}")):
        found = translated(error, about_target)
        assert type(found) is TableError
        assert f"refused the batch ({state})" in found.message
        assert VALUE not in found.message
