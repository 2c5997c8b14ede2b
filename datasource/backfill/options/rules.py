"""Options that do not go together.

Values are by the options' names in lower case; those that are wrong by themselves are missing, but for texts that are
taken as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from backfill.options.listed import BY_KEY, Changelog, Envelope, OnUnchangedToast, StartupMode

_OF_ITS_BEGINNING: Final = ("startupmode", "snapshotfilter")
"""What decides which rows a stream has. A batch that is taken for one would have others."""

_SPECIAL_TO_DUCKDB: Final = {"?", "\\"}
"""Characters that mean something in DuckDB's paths: ? begins a query string, \\ separates folders."""


def contradictions(values: Mapping[str, Any], *, streaming: bool, asked: Collection[str]) -> list[str]:
    """What is wrong with values that are right each for itself.

    `asked` are the keys of those given with one batch read, and not kept by a table of Spark's catalog, whose streams
    may heed what the read does not.
    """
    problems = _of_one_upstream(values)
    if streaming and not values["statedir"]:
        problems.append("stateDir is required for a stream: a folder of the driver that outlives the query")
    problems += folders(values)
    if streaming and values["filter"]:
        problems.append(
            "filter is for spark.read: a stream carries all changes; leave it out, and use where(), or snapshotFilter "
            "for the rows that are there"
        )
    if values.get("startupmode") is StartupMode.LATEST and values["snapshotfilter"]:
        problems.append("startupMode=latest reads no snapshot; leave out snapshotFilter")
    if values.get("onunchangedtoast") is OnUnchangedToast.MARK and values["snapshotfilter"]:
        problems.append(
            "onUnchangedToast=mark stands for a value that came before, and with snapshotFilter it may never have "
            "come; leave out one of the two"
        )
    problems += _metadata(values)
    problems += _positions(values, streaming=streaming)
    if streaming and values.get("view"):
        problems.append("view is for spark.read; leave it out")
    named = values.get("slotname") or values["publicationname"]
    if values.get("startupmode") is StartupMode.SNAPSHOT and named and not values["startingposition"]:
        problems.append("startupMode=snapshot reads no change log; leave out slotName and publicationName")
    if keeps_rows(values) and values.get("startupmode") in (StartupMode.LATEST, StartupMode.SNAPSHOT):
        problems.append(
            "changelog=full and envelope=upsert follow a table from its snapshot on; leave out startupMode, or them"
        )
    if values["ordercolumn"] and values.get("envelope", Envelope.UPSERT) is not Envelope.UPSERT:
        problems.append("orderColumn is for envelope=upsert; set that, or leave orderColumn out")
    return problems if streaming else problems + _unheeded(values, asked)


def _unheeded(values: Mapping[str, Any], asked: Collection[str]) -> list[str]:
    """What is asked of a stream where a batch is read."""
    has_state, of_changes = bool(values["statedir"]), bool(values["startingposition"])
    keys = [key for key, option in BY_KEY.items() if option.is_of_streams]
    if has_state or of_changes:
        keys = [key for key in keys if key in _OF_ITS_BEGINNING]
    if of_changes and not has_state:
        asked = keys  # There is no stream either for which a table of Spark may keep them.
    given = [key for key in keys if key in asked and key in values]
    given = [BY_KEY[key].name for key in given if values[key] != BY_KEY[key].value(BY_KEY[key].default)]
    if not given:
        return []
    needs = "readStream" if has_state or of_changes else "stateDir as well"
    read, chooser = ("changes", "where()") if of_changes else ("the table as it is now", "filter")
    chosen = f", where {chooser} chooses rows" if "snapshotFilter" in given else ""
    return [f"{', '.join(given)} is for a stream, which needs {needs}; leave it out to read {read}{chosen}"]


def _metadata(values: Mapping[str, Any]) -> list[str]:
    has_metadata = values["statedir"] or values["startingposition"]
    chosen = values.get("metadatacolumns", ("_change_type",))
    has_changes = bool(values["startingposition"])
    only_snapshot = not has_changes and values.get("startupmode", StartupMode.SNAPSHOT) is StartupMode.SNAPSHOT
    if not has_metadata or "_change_type" in chosen or only_snapshot:
        return []
    problem = "metadataColumns leaves out _change_type, without which a deleted row looks like an inserted one; name it"
    ways = "" if has_changes else ", or set startupMode=snapshot for a stream, or leave out stateDir for a batch"
    return [f"{problem} as well{ways}"]


def _positions(values: Mapping[str, Any], *, streaming: bool) -> list[str]:
    starting, ending = values["startingposition"], values["endingposition"]
    if streaming:
        named = [name for name, value in (("startingPosition", starting), ("endingPosition", ending)) if value]
        return [f"{name} is for spark.read; leave it out: a stream begins as startupMode says" for name in named]
    if not starting:
        return ["endingPosition needs startingPosition, from where the changes are read"] if ending else []
    problems = []
    if not values.get("path", "wrong") and not values.get("slotname", "wrong"):
        problems.append("startingPosition needs slotName: the replication slot that holds the changes")
    if values["filter"]:
        problems.append("filter is for the table as it is now, not for changes; leave it out, and use where() instead")
    if values.get("failondataloss") is False:
        problems.append(
            "failOnDataLoss=false is for a stream; leave it out, and use startingPosition=earliest to read what is left"
        )
    if keeps_rows(values):
        problems.append(
            "changelog=full and envelope=upsert take a stream's last rows; leave them out to read changes as logged"
        )
    return problems


def _of_one_upstream(values: Mapping[str, Any]) -> list[str]:
    """A database with `url` and `dbtable`, or a Delta table with `path` and `keyColumns`. Wrong values are missing."""
    url, dbtable, path, key = (values.get(name, "wrong") for name in ("url", "dbtable", "path", "keycolumns"))
    if path and (url or dbtable):
        return ["path is of a Delta table, and url and dbtable are of a database; give the one or the others"]
    if path:
        needless = [option.name for key, option in BY_KEY.items() if option.is_postgresql_only and values.get(key)]
        problems = [f"{', '.join(needless)} is for PostgreSQL; leave it out with path"] if needless else []
        return problems if key else [*problems, f"keyColumns is required with path: {BY_KEY['keycolumns'].meaning}"]
    missing = [name for name, value in (("url", url), ("dbtable", dbtable)) if not value]
    problems = [f"{name} is required: {BY_KEY[name].meaning}" for name in missing]
    if len(problems) == 2:
        problems[0] += ". Or path, for a Delta table"
    if key:
        problems.append("keyColumns is for a Delta table; a table of PostgreSQL has a key of its own. Leave it out")
    return problems


def folders(values: Mapping[str, Any]) -> list[str]:
    problems = []
    for key, name in (("statedir", "stateDir"), ("stagingdir", "stagingDir")):
        if values.get(key) and "://" not in values[key] and not Path(values[key]).is_absolute():
            problems.append(f"{name} is {values[key]!r}; expected an absolute path")
    if "://" in values["statedir"]:
        problems.append("stateDir is a URI; expected a local path of the driver (stagingDir may be a URI)")
    elif _SPECIAL_TO_DUCKDB.intersection(Path(values["statedir"]).as_posix()):
        problems.append(
            f"stateDir is {values['statedir']!r}; expected a path without ? and \\, which DuckDB cannot open"
        )
    return problems


def keeps_rows(values: Mapping[str, Any]) -> bool:
    return values.get("changelog") is Changelog.FULL or values.get("envelope") is Envelope.UPSERT
