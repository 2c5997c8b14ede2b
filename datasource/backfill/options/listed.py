"""The options there are: the only place that knows their names, defaults and meanings."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Generic, TypeVar

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
    """What the stream does about a TRUNCATE of the table."""

    FAIL = "fail"
    EMIT = "emit"
    IGNORE = "ignore"


class OnUnchangedToast(enum.Enum):
    """What the stream does about an update that leaves out a large unchanged value."""

    FAIL = "fail"
    MARK = "mark"


class Changelog(enum.Enum):
    """How much of a changed row is emitted."""

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


MOST_ROWS: Final = 1 << 40
"""How many rows a batch may be told to take at the most."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """An option as the user knows it; `parse` raises ValueError with what is allowed."""

    name: str
    default: str
    meaning: str
    parse: Callable[[str], T]
    _: KW_ONLY
    absent: Any = ""
    """The option's value where it is left out and has no default."""

    may_be_blank: bool = True
    """Whether a blank text counts as left out. Not where a variable that is empty would then have something else read.
    """

    may_hold_secrets: bool = False
    """Whether errors must not show its text."""

    is_postgresql_only: bool = False
    chooses_columns: bool = False
    """Whether the columns of what is read depend on it, beside the table."""

    is_of_streams: bool = False
    """Whether it asks for rows, or for a state, that a read of the table alone does not give."""

    goes_into_catalogs: bool = True
    """Whether a table of Spark's catalog may keep it, where anybody can read it."""

    @property
    def key(self) -> str:
        """The name as Spark gives it: in lower case."""
        return self.name.lower()

    def value(self, text: str) -> T:
        """The value that this text stands for; raises ValueError with what is allowed."""
        return self.parse(text) if text.strip() or self.default else self.absent


URL: Final = Option(
    "url",
    "",
    "Where the database is: a `postgresql://` URI or a libpq connection string, without a password",
    url,
    may_hold_secrets=True,
)

DBTABLE: Final = Option(
    "dbtable", "", 'The table: `orders`, `public.orders` or `"My Schema"."Orders"`; goes with `url`', str
)

PATH: Final = Option(
    "path",
    "",
    "Instead of `url` and `dbtable`, a Delta table: an absolute path, or a URI such as `s3://…`",
    place,
)

KEY_COLUMNS: Final = Option(
    "keyColumns",
    "",
    "The columns that tell the rows of a Delta table apart; goes with `path`",
    column_names,
    absent=(),
)

USER: Final = Option(
    "user", "", "The role to connect as, instead of the one that `url` may name", str, is_postgresql_only=True
)

PASSWORD: Final = Option(
    "password",
    "",
    "The role's password; libpq's passfile, service file and environment work too",
    str,
    may_hold_secrets=True,
    is_postgresql_only=True,
    goes_into_catalogs=False,
)

STATE_DIR: Final = Option("stateDir", "", "A folder on the driver for the stream's state; required for a stream", str)

STAGING_DIR: Final = Option(
    "stagingDir",
    "",
    "Where chunks are staged: a path or URI that all executors reach (default: inside `stateDir`); on `s3://` up "
    "to 5 GiB each",
    staging_place,
    may_hold_secrets=True,
)

STAGE_BEFORE_EMIT: Final = Option(
    "stageBeforeEmit",
    "false",
    "Stage each chunk completely before passing on its first row: for sinks that take rows one by one, such as "
    "Kafka and `foreach`; slower",
    flag,
)

STARTUP_MODE: Final = Option(
    "startupMode",
    "initial",
    "`initial`, `latest` or `snapshot`; see below",
    choice(StartupMode),
    is_of_streams=True,
)

COLUMNS: Final = Option(
    "columns",
    "",
    "The columns to read, separated by commas (default: all)",
    column_names,
    absent=(),
    chooses_columns=True,
)

METADATA: Final = Option(
    "metadataColumns",
    "all",
    "Which metadata columns a stream's rows have: `all`, or a list with `_change_type` in it; with "
    "`startupMode=snapshot` any list, or `none`",
    metadata_columns,
    chooses_columns=True,
)

FILTER: Final = Option(
    "filter", "", "For `spark.read`: a condition in SQL; the database sends only rows that meet it", str
)

SNAPSHOT_FILTER: Final = Option(
    "snapshotFilter",
    "",
    "For a stream: a condition in SQL; existing rows are read only if they meet it. Changes are not filtered",
    str,
    is_of_streams=True,
)

STARTING_POSITION: Final = Option(
    "startingPosition",
    "",
    "For `spark.read`: read the changes after this position instead of the table. An LSN such as `0/16B2D80` "
    "(needs `slotName`), a version of a Delta table, `earliest` or `latest`",
    str,
    may_be_blank=False,
)

ENDING_POSITION: Final = Option(
    "endingPosition", "", "For `spark.read`: read the changes up to this position (default: `latest`)", str
)

CUSTOM_SCHEMA: Final = Option(
    "customSchema",
    "",
    "Other Spark types for columns: `STRING` for any, `DECIMAL(p,s)` for a numeric, `TIME` for a time",
    column_types,
    absent=(),
    is_postgresql_only=True,
    chooses_columns=True,
)

NUM_PARTITIONS: Final = Option(
    "numPartitions",
    "4",
    "How many tasks of a batch may read rows at most; its changes may come in as many more",
    count(1, 10_000),
)

VNODE_COUNT: Final = Option(
    "vnodeCount",
    "256",
    "Into how many slices (vnodes) the key space is cut; progress is kept for each",
    count(1, 65_536),
)

MAX_ROWS_PER_TRIGGER: Final = Option(
    "maxRowsPerTrigger",
    "2000000",
    "About how many rows a batch takes; a commit is never split",
    count(1, MOST_ROWS),
)

MAX_BYTES_PER_TRIGGER: Final = Option(
    "maxBytesPerTrigger", "1g", "About how many bytes of snapshot rows a batch takes", size
)

FAIL_ON_DATA_LOSS: Final = Option(
    "failOnDataLoss",
    "true",
    "Whether the stream ends if changes were lost; with `false` the loss is logged and the stream goes on",
    flag,
)

ON_TRUNCATE: Final = Option(
    "onTruncate",
    "fail",
    "What a TRUNCATE does: `fail`, `emit` or `ignore`",
    choice(OnTruncate),
    is_of_streams=True,
)

CHANGELOG: Final = Option(
    "changelog",
    "logged",
    "`logged`: of changed rows, what the change log has. `full`: all columns before and after each change, also "
    "under `REPLICA IDENTITY DEFAULT`, from the last rows kept in `stateDir`",
    choice(Changelog),
    is_of_streams=True,
)

ENVELOPE: Final = Option(
    "envelope",
    "operations",
    "`upsert`: a change says only which row its key has now, if any. Inserts, update pairs and deletes follow from "
    "the last rows kept in `stateDir`; what changes nothing is left out",
    choice(Envelope),
    is_of_streams=True,
)

ORDER_COLUMN: Final = Option(
    "orderColumn",
    "",
    "With `envelope=upsert`: a row whose value in this column (whole numbers, dates or timestamps) is lower than "
    "any that its key had before is late, and is left out",
    str,
    is_of_streams=True,
)

STATE_MEMORY: Final = Option(
    "stateMemory", "512m", "How much memory the last rows may take on the driver; at least 256m", memory
)

ON_UNCHANGED_TOAST: Final = Option(
    "onUnchangedToast",
    "fail",
    "If the log leaves out a large unchanged value: `fail`, or `mark` its column",
    choice(OnUnchangedToast),
    chooses_columns=True,
    is_of_streams=True,
)

ON_EXISTING_STATE: Final = Option(
    "onExistingState",
    "fail",
    "What a new checkpoint does with a `stateDir` that has progress: `fail`, `resume` from it, or `restart` the "
    "backfill",
    choice(OnExistingState),
)

SLOT_NAME: Final = Option(
    "slotName",
    "",
    "The replication slot (default: `backfill_<schema>_<table>_<stream>`)",
    slot_name,
    is_postgresql_only=True,
)

PUBLICATION_NAME: Final = Option(
    "publicationName",
    "",
    "The publication (default: `backfill_<schema>_<table>_<stream>`, or with `startingPosition` the slot's name)",
    str,
    is_postgresql_only=True,
)

SESSION_INIT_STATEMENT: Final = Option(
    "sessionInitStatement",
    "",
    "One SQL statement that each session runs after connecting. Settings that decide how values are read are set "
    "again after it. Spark shows it in plans",
    str,
    is_postgresql_only=True,
    goes_into_catalogs=False,
)

VIEW: Final = Option(
    "view",
    "",
    "For `spark.read`: the `progress` or `summary` of the stream with this `stateDir`, instead of the table",
    choice(View),
)

OPTIONS: Final[tuple[Option[Any], ...]] = (
    *(URL, DBTABLE, PATH, KEY_COLUMNS, USER, PASSWORD, STATE_DIR, STAGING_DIR, STAGE_BEFORE_EMIT, STARTUP_MODE),
    *(COLUMNS, METADATA, FILTER, SNAPSHOT_FILTER, STARTING_POSITION, ENDING_POSITION, CUSTOM_SCHEMA, NUM_PARTITIONS),
    *(VNODE_COUNT, MAX_ROWS_PER_TRIGGER, MAX_BYTES_PER_TRIGGER, FAIL_ON_DATA_LOSS, ON_TRUNCATE, CHANGELOG, ENVELOPE),
    *(ORDER_COLUMN, STATE_MEMORY, ON_UNCHANGED_TOAST, ON_EXISTING_STATE, SLOT_NAME, PUBLICATION_NAME),
    *(SESSION_INIT_STATEMENT, VIEW),
)

BY_KEY: Final = {option.key: option for option in OPTIONS}
"""The options by their keys."""

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
"""Names that other sources, of Spark or of changes, have for an option here, where the two names are not alike."""
