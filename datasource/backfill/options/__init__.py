"""Spark's string options as one frozen, validated value.

Spark gives the keys in lower case. All problems are reported together, each with the option as the user knows it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from backfill.errors import OptionsError
from backfill.options.listed import (
    BY_KEY,
    CALLED_ELSEWHERE,
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
from backfill.options.texts import METADATA_COLUMNS, as_refused, require_readable

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

# Spark adds these to what the user gave.
_SPARKS_OWN: Final = frozenset({"provider", "owner", "location", "is_managed_location", "external"})


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
    """What rows have beside the table's columns, in the order of `METADATA_COLUMNS`."""

    last_rows: LastRowsOptions | None = None
    """None where changes are passed on as they are logged, for which no last rows are needed."""

    @property
    def order_column(self) -> str:
        """By which of a key's rows is the last; empty where that goes by the log."""
        return "" if self.last_rows is None else self.last_rows.order_column

    @property
    def only_snapshot(self) -> bool:
        """Whether the stream is one batch, of the table's rows, and has no place in the change log."""
        return self.startup_mode is StartupMode.SNAPSHOT


@dataclass(frozen=True, slots=True)
class Options:
    """All options, validated. `password` and a statement, which may hold one, are never part of a representation."""

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
    """Whether `columns` are what a DataFrame or a table of Spark's catalog has, and not what the option says."""

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
    """The options; OptionsError that lists every problem. A stream needs more of them than a look at the schema.

    `asked`: see `rules.contradictions`.
    """
    values, problems = _values(given)
    problems += contradictions(values, streaming=streaming, asked={key.lower() for key in asked})
    _raise(problems)
    return _options(values)


def reads_changes(given: Mapping[str, str]) -> bool:
    """Whether the changes between two positions are asked for, and not the table."""
    return any(key.lower() == "startingposition" and value.strip() for key, value in given.items())


def parse_view(given: Mapping[str, str]) -> tuple[View, Path] | None:
    """Which view is asked for and the `stateDir` it is of, which is all it needs; None where a table is read."""
    if not any(key.lower() == "view" and value.strip() for key, value in given.items()):
        return None
    values, problems = _values(given)
    if not values["statedir"]:
        problems.append("stateDir is required for a view: the folder of the stream to look at")
    needless = [BY_KEY[key].name for key in ("startingposition", "endingposition", "filter") if values[key]]
    if needless:
        problems.append(f"view is of a stream's state, and not of a table; leave out {', '.join(needless)}")
    problems += folders(values)
    _raise(problems)
    return values["view"], Path(values["statedir"])


def _raise(problems: list[str]) -> None:
    if problems:
        raise OptionsError("the backfill source cannot use its options:\n  - " + "\n  - ".join(problems))


def _values(given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Each option's value, as far as it is right, and what is wrong with the others."""
    problems = [_unknown(key) for key in given if key.lower() not in BY_KEY and key.lower() not in _SPARKS_OWN]
    texts = {key.lower(): value for key, value in given.items()}
    values: dict[str, Any] = {}
    for key, option in BY_KEY.items():
        text = texts.get(key, option.default)
        try:
            require_readable(text)
            values[key] = option.value(text)
        except ValueError as error:
            shown = as_refused(text, secret=option.may_hold_secrets)
            problems.append(f"{option.name} {shown}; expected {error}")
            if option.parse is str:
                values[key] = text  # `rules` looks at every text that is taken as it is, a refused one too.
    blank = [option.name for key, option in BY_KEY.items() if not (option.may_be_blank or texts.get(key, "-").strip())]
    problems += [f"{name} is blank; leave it out, or give it a value" for name in blank]
    return values, problems


def _unknown(key: str) -> str:
    name = key.lower()
    elsewhere = [CALLED_ELSEWHERE[name]] if name in CALLED_ELSEWHERE else []
    near = elsewhere or [BY_KEY[found].name for found in difflib.get_close_matches(name, BY_KEY, n=1, cutoff=0.6)]
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(o.name for o in OPTIONS)}"
    return f"unknown option {key}{hint}"


def _options(values: Mapping[str, Any]) -> Options:
    return Options(
        url=values["url"],
        dbtable=values["dbtable"],
        path=values["path"],
        key_columns=values["keycolumns"],
        user=values["user"],
        password=values["password"],
        state_dir=values["statedir"],
        staging_dir=values["stagingdir"] or (f"{values['statedir']}/staging" if values["statedir"] else ""),
        columns=values["columns"],
        filter=values["filter"],
        starting_position=values["startingposition"],
        ending_position=values["endingposition"],
        custom_schema=values["customschema"],
        fail_on_data_loss=values["failondataloss"],
        slot_name=values["slotname"],
        publication_name=values["publicationname"],
        session_init_statement=values["sessioninitstatement"],
        stream=StreamOptions(
            startup_mode=values["startupmode"],
            num_partitions=values["numpartitions"],
            vnode_count=values["vnodecount"],
            max_rows=values["maxrowspertrigger"],
            max_bytes=values["maxbytespertrigger"],
            on_truncate=values["ontruncate"],
            on_existing_state=values["onexistingstate"],
            mark_unchanged=values["onunchangedtoast"] is OnUnchangedToast.MARK,
            stage_before_emit=values["stagebeforeemit"],
            snapshot_filter=values["snapshotfilter"].strip(),
            metadata=values["metadatacolumns"],
            last_rows=_last_rows(values) if keeps_rows(values) else None,
        ),
    )


def _last_rows(values: Mapping[str, Any]) -> LastRowsOptions:
    return LastRowsOptions(
        upsert=values["envelope"] is Envelope.UPSERT,
        order_column=values["ordercolumn"],
        memory=values["statememory"],
    )
