"""Spark's string options as one frozen, validated value.

Spark gives the keys in lower case. All problems are reported together, each with the option as the user knows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backfill.errors import OptionsError
from backfill.options import listed
from backfill.options.given import Values, each_by_itself
from backfill.options.listed import (
    BY_KEY,
    MOST_ROWS,
    OPTIONS,
    Envelope,
    OnExistingState,
    OnTruncate,
    OnUnchangedToast,
    StartupMode,
    View,
)
from backfill.options.rules import contradictions, folders, keeps_rows
from backfill.options.texts import METADATA_COLUMNS

__all__ = [
    "BY_KEY",
    "METADATA_COLUMNS",
    "MOST_ROWS",
    "OPTIONS",
    "LastRowsOptions",
    "OnExistingState",
    "OnTruncate",
    "OnUnchangedToast",
    "Options",
    "StartupMode",
    "StreamOptions",
    "View",
    "parse",
    "parse_view",
    "reads_changes",
]


@dataclass(frozen=True, slots=True)
class LastRowsOptions:
    """How the last row of every key is kept, and what for."""

    upsert: bool
    order_column: str
    memory: int


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the algorithm itself needs to know."""

    startup_mode: StartupMode
    num_partitions: int
    vnode_count: int
    max_rows: int
    max_bytes: int
    on_truncate: OnTruncate
    on_existing_state: OnExistingState
    mark_unchanged: bool
    stage_before_emit: bool = False
    """Whether a chunk is staged whole before its first row is passed on."""

    snapshot_filter: str = ""
    """A condition on the rows that the snapshot reads; the upstream evaluates it."""

    metadata: tuple[str, ...] = METADATA_COLUMNS
    """The columns that rows have beside the table's, in the order of `METADATA_COLUMNS`."""

    last_rows: LastRowsOptions | None = None
    """None where changes are passed on as they are logged, for which no last rows are needed."""

    @property
    def order_column(self) -> str:
        """The column that tells which of a key's rows is the last; empty where that goes by the log."""
        return "" if self.last_rows is None else self.last_rows.order_column

    @property
    def only_snapshot(self) -> bool:
        """Whether the stream is one batch, of the table's rows, and has no place in the change log."""
        return self.startup_mode is StartupMode.SNAPSHOT


@dataclass(frozen=True, slots=True)
class Options:
    """All options, validated. `password`, and the statement, which may hold one, are never part of a representation."""

    url: str
    dbtable: str
    path: str
    key_columns: tuple[str, ...]
    user: str
    password: str = field(repr=False)
    state_dir: str
    staging_dir: str
    columns: tuple[str, ...]
    filter: str
    starting_position: str
    ending_position: str
    custom_schema: tuple[tuple[str, str], ...]
    fail_on_data_loss: bool
    slot_name: str
    publication_name: str
    session_init_statement: str = field(repr=False)
    stream: StreamOptions
    columns_of_spark: bool = False
    """Whether `columns` are those of a DataFrame or of a table in Spark's catalog, and not what the option says."""

    @property
    def follows(self) -> bool:
        """Whether changes are read, and not the table's rows alone."""
        streams = bool(self.state_dir) and not self.stream.only_snapshot
        return streams or bool(self.starting_position)

    @property
    def has_metadata(self) -> bool:
        """Whether rows have the columns of a stream, and not only the table's."""
        return bool(self.state_dir or self.starting_position)


def parse(given: Mapping[str, str], *, streaming: bool = False, asked: Collection[str] = ()) -> Options:
    """Parses and validates the options. Raises an OptionsError that lists every problem.

    `streaming`: they are for a stream, which needs more of them than a look at the schema. `asked`: see
    `rules.contradictions`.
    """
    values, problems = each_by_itself(given)
    problems += contradictions(values, streaming=streaming, asked={key.lower() for key in asked})
    _raise(problems)
    return _options(values)


def reads_changes(given: Mapping[str, str]) -> bool:
    """Whether the changes between two positions are asked for, and not the table."""
    return any(key.lower() == "startingposition" and value.strip() for key, value in given.items())


def parse_view(given: Mapping[str, str]) -> tuple[View, Path] | None:
    """The view that is asked for and the `stateDir` it is of, which is all it needs; None where a table is read."""
    if not any(key.lower() == "view" and value.strip() for key, value in given.items()):
        return None
    values, problems = each_by_itself(given)
    if values.lacks(listed.STATE_DIR):
        problems.append("stateDir is required for a view: the folder of the stream to look at")
    of_tables = (listed.STARTING_POSITION, listed.ENDING_POSITION, listed.FILTER)
    needless = [option.name for option in of_tables if values.has(option)]
    if needless:
        problems.append(f"view shows a stream's state and not a table; leave out {', '.join(needless)}")
    problems += folders(values)
    _raise(problems)
    return values[listed.VIEW], Path(values[listed.STATE_DIR])


def _raise(problems: list[str]) -> None:
    if problems:
        raise OptionsError("the backfill source cannot use its options:\n  - " + "\n  - ".join(problems))


def _options(values: Values) -> Options:
    state_dir = values[listed.STATE_DIR]
    return Options(
        url=values[listed.URL],
        dbtable=values[listed.DBTABLE],
        path=values[listed.PATH],
        key_columns=values[listed.KEY_COLUMNS],
        user=values[listed.USER],
        password=values[listed.PASSWORD],
        state_dir=state_dir,
        staging_dir=values[listed.STAGING_DIR] or (f"{state_dir}/staging" if state_dir else ""),
        columns=values[listed.COLUMNS],
        filter=values[listed.FILTER],
        starting_position=values[listed.STARTING_POSITION],
        ending_position=values[listed.ENDING_POSITION],
        custom_schema=values[listed.CUSTOM_SCHEMA],
        fail_on_data_loss=values[listed.FAIL_ON_DATA_LOSS],
        slot_name=values[listed.SLOT_NAME],
        publication_name=values[listed.PUBLICATION_NAME],
        session_init_statement=values[listed.SESSION_INIT_STATEMENT],
        stream=StreamOptions(
            startup_mode=values[listed.STARTUP_MODE],
            num_partitions=values[listed.NUM_PARTITIONS],
            vnode_count=values[listed.VNODE_COUNT],
            max_rows=values[listed.MAX_ROWS_PER_TRIGGER],
            max_bytes=values[listed.MAX_BYTES_PER_TRIGGER],
            on_truncate=values[listed.ON_TRUNCATE],
            on_existing_state=values[listed.ON_EXISTING_STATE],
            mark_unchanged=values[listed.ON_UNCHANGED_TOAST] is OnUnchangedToast.MARK,
            stage_before_emit=values[listed.STAGE_BEFORE_EMIT],
            snapshot_filter=values[listed.SNAPSHOT_FILTER].strip(),
            metadata=values[listed.METADATA],
            last_rows=_last_rows(values) if keeps_rows(values) else None,
        ),
    )


def _last_rows(values: Values) -> LastRowsOptions:
    return LastRowsOptions(
        upsert=values[listed.ENVELOPE] is Envelope.UPSERT,
        order_column=values[listed.ORDER_COLUMN],
        memory=values[listed.STATE_MEMORY],
    )
