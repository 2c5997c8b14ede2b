"""The options there are: the only place that knows their names, defaults and meanings."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from backfill.options.texts import (
    choice,
    column_names,
    column_types,
    count,
    flag,
    memory,
    metadata_columns,
    place,
    size,
    slot_name,
    staging_place,
    url,
)


class StartupMode(enum.Enum):
    """What a new stream begins with."""

    INITIAL = "initial"
    LATEST = "latest"
    SNAPSHOT = "snapshot"


class OnTruncate(enum.Enum):
    """What a TRUNCATE of the table comes to."""

    FAIL = "fail"
    EMIT = "emit"
    IGNORE = "ignore"


class OnUnchangedToast(enum.Enum):
    """What an update comes to that leaves out a large unchanged value."""

    FAIL = "fail"
    MARK = "mark"


class Changelog(enum.Enum):
    """How much of a changed row is told."""

    LOGGED = "logged"
    FULL = "full"


class Envelope(enum.Enum):
    """What a change of the upstream stands for."""

    OPERATIONS = "operations"
    UPSERT = "upsert"


class OnExistingState(enum.Enum):
    """What a new checkpoint does with a state directory that already has progress."""

    FAIL = "fail"
    RESUME = "resume"
    RESTART = "restart"


class View(enum.Enum):
    """What can be read of a stream instead of its table."""

    PROGRESS = "progress"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Option:
    """One option as the user knows it; `parse` raises ValueError with what is allowed."""

    name: str
    default: str
    meaning: str
    parse: Callable[[str], Any] = str


OPTIONS: Final = (
    Option("url", "", "Where the database is: a `postgresql://` URI or a libpq connection string, no password", url),
    Option("dbtable", "", 'The table: `orders`, `public.orders`, `"My Schema"."Orders"`; goes with `url`'),
    Option("path", "", "In place of these two a Delta table: an absolute path, or a URI such as `s3://…`", place),
    Option("keyColumns", "", "The columns that tell the rows of a Delta table apart; goes with `path`", column_names),
    Option("user", "", "The role to connect as, where `url` has none"),
    Option("password", "", "The role's password; libpq's passfile, service file and environment work too"),
    Option("stateDir", "", "A folder of the driver for the stream's state; required for a stream"),
    Option(
        "stagingDir",
        "",
        "Where chunks are staged: a path or URI all executors reach (default: in `stateDir`); on `s3://` up to 5 GiB "
        "each",
        staging_place,
    ),
    Option(
        "stageBeforeEmit",
        "false",
        "Whether a chunk is staged whole before its first row is passed on, for sinks that take single rows, such as "
        "Kafka and `foreach`; takes longer",
        flag,
    ),
    Option("startupMode", "initial", "`initial`, `latest` or `snapshot`", choice(StartupMode)),
    Option("columns", "", "The columns to carry, separated by commas (default: all)", column_names),
    Option(
        "metadataColumns",
        "all",
        "The metadata columns of a stream's rows: `all`; some of them, with `_change_type`; with "
        "`startupMode=snapshot` any or `none`",
        metadata_columns,
    ),
    Option("filter", "", "For `spark.read`: a condition in SQL; the database gives only rows for which it holds"),
    Option(
        "snapshotFilter",
        "",
        "For a stream: a condition in SQL; of the rows that are there, only those are read for which it holds",
    ),
    Option(
        "startingPosition",
        "",
        "For `spark.read`: the changes after this position, in place of the table; an LSN (`0/16B2D80`; needs "
        "`slotName`), a version of a Delta table, `earliest` or `latest`",
    ),
    Option("endingPosition", "", "For `spark.read`: the changes up to this position (default: `latest`)"),
    Option("customSchema", "", "Other types for columns: `STRING` for any, `DECIMAL(p,s)` for a numeric", column_types),
    Option("numPartitions", "4", "How many readers a batch may use", count(1, 10_000)),
    Option("vnodeCount", "256", "How many slices of the key space progress is kept for", count(1, 65_536)),
    Option(
        "maxRowsPerTrigger", "2000000", "About how many rows a batch takes; a commit is never cut", count(1, 1 << 40)
    ),
    Option("maxBytesPerTrigger", "1g", "About how many bytes of snapshot rows a batch takes", size),
    Option(
        "failOnDataLoss",
        "true",
        "Whether lost changes end the stream; if not, the loss is logged and the stream goes on",
        flag,
    ),
    Option("onTruncate", "fail", "`fail`, `emit` or `ignore` a TRUNCATE", choice(OnTruncate)),
    Option(
        "changelog",
        "logged",
        "`logged`: of changed rows what the change log tells. `full`: all columns of rows before and after, also under "
        "`REPLICA IDENTITY DEFAULT`, from the last rows kept in `stateDir`",
        choice(Changelog),
    ),
    Option(
        "envelope",
        "operations",
        "`upsert`: a change says only which row its key has now, if any; inserts, update pairs and deletes follow from "
        "the last rows kept in `stateDir`, and what changes nothing is left out",
        choice(Envelope),
    ),
    Option(
        "orderColumn",
        "",
        "With `envelope=upsert`: a row with less in it than the last row of its key comes late, and is left out",
    ),
    Option("stateMemory", "512m", "How much memory of the driver the last rows take at the most; 256m or more", memory),
    Option(
        "onUnchangedToast", "fail", "`fail`, or `mark` large values that the log left out", choice(OnUnchangedToast)
    ),
    Option(
        "onExistingState",
        "fail",
        "A new checkpoint with a used `stateDir`: `fail`, `resume` from it, or `restart` the backfill",
        choice(OnExistingState),
    ),
    Option("slotName", "", "The replication slot (default: `backfill_<schema>_<table>_<stream>`)", slot_name),
    Option("publicationName", "", "The publication (default: the same name)"),
    Option(
        "sessionInitStatement",
        "",
        "One SQL statement that each session runs after it has connected. What decides how values are read is set "
        "again after it; Spark shows it in plans",
    ),
    Option(
        "view",
        "",
        "For `spark.read`: `progress` or `summary` of the stream with this `stateDir`, in place of the table",
        choice(View),
    ),
)

BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}
"""As Spark gives them: in lower case."""

CALLED_ELSEWHERE: Final = {
    "query": "dbtable",
    "host": "url",
    "hostname": "url",
    "database": "url",
    "primarykey": "keyColumns",
    "startingoffsets": "startupMode",
    "snapshot.mode": "startupMode",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
    "maxfilespertrigger": "maxRowsPerTrigger",
}
"""What other sources of Spark and of changes call what an option here is for, where the two are not alike."""
