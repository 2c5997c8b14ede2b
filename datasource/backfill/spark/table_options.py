"""What a table made with `CREATE TABLE … USING backfill OPTIONS (…)` remembers of its options.

Spark (4.3) passes a table's options to a Python source when the table is made, each under its name and once more with
a prefix, and never again: a read gets the options of its own `WITH (…)` and the columns that the source gave when the
table was made. So the options travel in the metadata of the first column. Whatever Spark may show or hand on must not
be among them: no password (a URL with one is refused anyway), and no SQL statement, which might say anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from backfill.errors import OptionsError
from backfill.options import BY_KEY, Options
from backfill.rows import METADATA, RESERVED

PREFIX: Final = "option."

KEY: Final = "__file_source_generated_metadata_col"
"""A key that means nothing beside a table's column, and that Spark's writers of files leave out of what they write:
any other would put the options into the footer of each Parquet file."""


def of_new_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options that a table is being made with; None where no table is made."""
    found = {key[len(PREFIX) :]: value for key, value in given.items() if key.lower().startswith(PREFIX)}
    if not found:
        return None
    named = {key.lower() for key in found}
    secret = [option.name for key, option in BY_KEY.items() if key in named and not option.goes_into_catalogs]
    if secret:
        raise OptionsError(
            f"a table may not have the options {' and '.join(secret)}, because Spark writes a table's options into "
            "its catalog and its logs. Let libpq find the password (a passfile, which url may name: "
            "postgresql://app@db/shop?passfile=/etc/app/pgpass; a service file; PGPASSWORD), and use ALTER ROLE … "
            "SET or url with options=-c… instead of a statement"
        )
    if "location" in given and not any(key.lower() in ("url", "dbtable") for key in found):
        # Spark takes `path` out of the OPTIONS and makes it the table's place.
        found["path"] = given["location"]
    return found


def carrying(columns: StructType, options: Mapping[str, str]) -> StructType:
    """The columns, with these options in their metadata."""
    text = json.dumps({key.lower(): value for key, value in options.items()}, sort_keys=True)
    first, *others = columns.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {KEY: text}), *others])


def keeps_options(columns: StructType) -> bool:
    """Whether these are the columns of a table that was made with options."""
    return _kept(columns) is not None


def _kept(columns: StructType) -> str | None:
    """The options that the first column was given; by now others may stand before it."""
    return next((field.metadata[KEY] for field in columns if KEY in field.metadata), None)


def of_table(columns: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """The options to read with: those that the table keeps, if these are a table's columns, and those given now."""
    own = {key.lower(): value for key, value in given.items()}
    kept = _kept(columns)
    if kept is not None:
        made_with = json.loads(kept)
        _require_its_columns(columns, made_with, own)
        return {**made_with, **own}
    if not own.keys() & {"url", "dbtable", "path", "view"}:
        raise OptionsError(
            "Spark does not pass on the options of this table: it was made with a list of columns, or with "
            "TBLPROPERTIES instead of OPTIONS, or ALTER TABLE dropped its first column. Make it again with OPTIONS "
            "and without the list (the option columns chooses columns, customSchema their types); or give the "
            "options with each read: SELECT … FROM … WITH (url = '…', dbtable = '…'), or WITH (path = '…', …)"
        )
    return own


def _require_its_columns(columns: StructType, made_with: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Refuses options of a read that would give other columns than the table has."""
    had: dict[str, Any] = {
        "columns": tuple(name for name in columns.names if name not in RESERVED),
        "metadatacolumns": tuple(name for name in METADATA.names if name in columns.names),
    }
    others = []
    for key, option in BY_KEY.items():
        if key not in given or not option.chooses_columns:
            continue
        with suppress(ValueError):  # A value that is wrong by itself is refused later, with all problems.
            same = had[key] if key in had else option.value(made_with.get(key, option.default))
            if option.value(given[key]) not in (same, option.absent):
                others.append(option.name)
    if others:
        raise OptionsError(
            f"this table keeps the columns that it was made with, so {', '.join(others)} cannot be given with a read; "
            "select from its columns, or make another table with other OPTIONS"
        )


def with_columns(options: Options, columns: StructType) -> Options:
    """The options, so that they name exactly these columns of the table.

    Where ALTER TABLE has dropped a column from a table of Spark's catalog, its type in `customSchema` goes with it.
    """
    made_up = RESERVED if options.has_metadata else ()
    names = tuple(name for name in columns.names if name not in made_up)
    types = options.custom_schema
    if keeps_options(columns):
        types = tuple((name, kind) for name, kind in types if name in names)
    return replace(options, columns=names, columns_of_spark=names != options.columns, custom_schema=types)


def as_kept(options: Options, columns: StructType) -> Options:
    """The options of a stream, or of a read of changes: a table of Spark's catalog keeps its columns when the table in
    the database gets further ones.
    """
    return with_columns(options, columns) if keeps_options(columns) else options
