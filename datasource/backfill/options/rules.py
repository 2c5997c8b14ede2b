"""Options that do not go together.

From a value that is wrong by itself, nothing is concluded but that its option was given.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from backfill.options import listed
from backfill.options.given import Values
from backfill.options.listed import Changelog, Envelope, OnUnchangedToast, StartupMode

_OF_ITS_BEGINNING: Final = (listed.STARTUP_MODE, listed.SNAPSHOT_FILTER)
"""The options that decide which rows a stream has. A batch that is taken for a stream would have others."""

_SPECIAL_TO_DUCKDB: Final = {"?", "\\"}
"""Characters that mean something in DuckDB's paths: ? begins a query string, \\ separates folders."""


def contradictions(values: Values, *, streaming: bool, asked: Collection[str]) -> list[str]:
    """What is wrong with values of which each is right by itself.

    `asked` are the keys of the options that were given with a batch read itself. What a table of Spark's catalog keeps
    is not among them, because that table's streams may heed what the read does not.
    """
    mode = values.get(listed.STARTUP_MODE)
    problems = _of_one_upstream(values)
    if streaming and values.lacks(listed.STATE_DIR):
        problems.append("stateDir is required for a stream: a folder of the driver that outlives the query")
    problems += folders(values)
    if streaming and values.has(listed.FILTER):
        problems.append(
            "filter is for spark.read, because a stream carries all changes; leave it out, and use where(), or "
            "snapshotFilter for the existing rows"
        )
    if mode is StartupMode.LATEST and values.has(listed.SNAPSHOT_FILTER):
        problems.append("startupMode=latest reads no snapshot; leave out snapshotFilter")
    if values.get(listed.ON_UNCHANGED_TOAST) is OnUnchangedToast.MARK and values.has(listed.SNAPSHOT_FILTER):
        problems.append(
            "onUnchangedToast=mark refers to a value that came before, which with snapshotFilter may never have "
            "come; leave out one of the two"
        )
    problems += _metadata(values)
    problems += _positions(values, streaming=streaming)
    if streaming and values.has(listed.VIEW):
        problems.append("view is for spark.read; leave it out")
    named = values.has(listed.SLOT_NAME) or values.has(listed.PUBLICATION_NAME)
    if mode is StartupMode.SNAPSHOT and named and values.lacks(listed.STARTING_POSITION):
        problems.append("startupMode=snapshot reads no change log; leave out slotName and publicationName")
    if keeps_rows(values) and mode in (StartupMode.LATEST, StartupMode.SNAPSHOT):
        problems.append(
            "changelog=full and envelope=upsert need startupMode=initial, because they begin with the snapshot; "
            "leave out startupMode, or them"
        )
    if values.has(listed.ORDER_COLUMN) and values.get(listed.ENVELOPE) is Envelope.OPERATIONS:
        problems.append("orderColumn is for envelope=upsert; set that, or leave orderColumn out")
    return problems if streaming else problems + _unheeded(values, asked)


def _unheeded(values: Values, asked: Collection[str]) -> list[str]:
    """The problem with options for streams that were given where a batch is read."""
    has_state, of_changes = not values.lacks(listed.STATE_DIR), not values.lacks(listed.STARTING_POSITION)
    options = [option for option in listed.OPTIONS if option.is_of_streams]
    if has_state or of_changes:
        options = [*_OF_ITS_BEGINNING]
    if of_changes and not has_state:
        asked = [option.key for option in options]  # There is no stream for which a table of Spark may keep them.
    given = [option.name for option in options if option.key in asked and values.has(option)]
    if not given:
        return []
    needs = "readStream" if has_state or of_changes else "stateDir as well"
    read, chooser = ("changes", "where()") if of_changes else ("the table as it is now", "filter")
    chosen = f", where {chooser} chooses rows" if "snapshotFilter" in given else ""
    return [f"{', '.join(given)} is for a stream, which needs {needs}; leave it out to read {read}{chosen}"]


def _metadata(values: Values) -> list[str]:
    chosen, has_changes = values.get(listed.METADATA), not values.lacks(listed.STARTING_POSITION)
    mode = values.get(listed.STARTUP_MODE)
    follows = values.has(listed.STATE_DIR) and mode in (StartupMode.INITIAL, StartupMode.LATEST)
    if chosen is None or "_change_type" in chosen or not (has_changes or follows):
        return []
    problem = "metadataColumns leaves out _change_type, without which a deleted row looks like an inserted one; name it"
    ways = "" if has_changes else ", or set startupMode=snapshot for a stream, or leave out stateDir for a batch"
    return [f"{problem} as well{ways}"]


def _positions(values: Values, *, streaming: bool) -> list[str]:
    if streaming:
        named = [option.name for option in (listed.STARTING_POSITION, listed.ENDING_POSITION) if values.has(option)]
        return [f"{name} is for spark.read; leave it out: a stream begins as startupMode says" for name in named]
    if values.lacks(listed.STARTING_POSITION):
        ending = values.has(listed.ENDING_POSITION)
        return ["endingPosition needs startingPosition, from where the changes are read"] if ending else []
    problems = []
    if values.lacks(listed.PATH) and values.lacks(listed.SLOT_NAME):
        problems.append("startingPosition needs slotName: the replication slot that holds the changes")
    if values.has(listed.FILTER):
        problems.append("filter is for the table as it is now, not for changes; leave it out, and use where() instead")
    if values.get(listed.FAIL_ON_DATA_LOSS) is False:
        problems.append(
            "failOnDataLoss=false is for a stream; leave it out, and use startingPosition=earliest to read what is left"
        )
    if keeps_rows(values):
        problems.append(
            "changelog=full and envelope=upsert need the last rows that a stream keeps; leave them out to read "
            "changes as logged"
        )
    return problems


def _of_one_upstream(values: Values) -> list[str]:
    """The problems unless one source is named: a database with `url` and `dbtable`, or a Delta table with `path` and
    `keyColumns`.
    """
    missing = [option for option in (listed.URL, listed.DBTABLE) if values.lacks(option)]
    if not values.lacks(listed.PATH):
        if len(missing) < 2:
            return ["path names a Delta table, and url and dbtable a table of PostgreSQL; give one or the other"]
        needless = [option.name for option in listed.OPTIONS if option.is_postgresql_only and values.has(option)]
        problems = [f"{', '.join(needless)} is for PostgreSQL; leave it out with path"] if needless else []
        if values.lacks(listed.KEY_COLUMNS):
            problems.append(f"keyColumns is required with path: {listed.KEY_COLUMNS.meaning}")
        return problems
    problems = [f"{option.name} is required: {option.meaning}" for option in missing]
    if len(missing) == 2:
        problems[0] += ". Or path, for a Delta table"
    if not values.lacks(listed.KEY_COLUMNS):
        problems.append("keyColumns is for a Delta table; a table of PostgreSQL has its own key. Leave it out")
    return problems


def folders(values: Values) -> list[str]:
    problems = []
    for option in (listed.STATE_DIR, listed.STAGING_DIR):
        folder = values.get(option)
        if folder and "://" not in folder and not Path(folder).is_absolute():
            problems.append(f"{option.name} is {folder!r}; expected an absolute path")
    state = values.get(listed.STATE_DIR) or ""
    if "://" in state:
        problems.append("stateDir is a URI; expected a local path of the driver (stagingDir may be a URI)")
    elif _SPECIAL_TO_DUCKDB.intersection(Path(state).as_posix()):
        problems.append(f"stateDir is {state!r}; expected a path without ? and \\, which DuckDB cannot open")
    return problems


def keeps_rows(values: Values) -> bool:
    return values.get(listed.CHANGELOG) is Changelog.FULL or values.get(listed.ENVELOPE) is Envelope.UPSERT
