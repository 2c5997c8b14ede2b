"""Whether a RESTORE took a query's batches out of its Delta table, or the table was made anew.

Both leave application transactions as they are, so by the record of batches the table still has them all. Therefore the
record of a batch has the version that it was merged into, and its commit names the query in its `commitInfo`. Whatever
was committed since is looked through. A RESTORE, or a table made anew, that comes between this look and the batch's
commit conflicts with that, whichever files it is over, because Spark and deltalake write the table's metadata with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from deltalake import DeltaTable

from backfill.errors import StateError
from backfill.sinks.applied import BEGIN_ANEW
from backfill.upstream.delta.files.commits import actions
from backfill.upstream.delta.files.location import FileLocation, Files
from backfill.upstream.delta.files.log import commit_file

_QUERY: Final = "backfillQuery"

_MADE_ANEW: Final = ("REPLACE TABLE", "CLONE")
"""Words in the names of operations that make a new table, with other rows in the place of all that there are. A mere
overwrite is like any other write: whoever does it means the table that there is.
"""

_UNTOLD: Final = -1
"""Stands for the version of a RESTORE to a time: which one it is depends on the time zone of whoever asked for it."""


def commit_properties(query: str) -> dict[str, str]:
    """What the commit of a batch of this query says beside the rest."""
    return {_QUERY: query}


def require_not_restored(
    table: DeltaTable, query: str, after: int, storage_options: Mapping[str, str], *, is_known: Callable[[], bool]
) -> None:
    """Raises StateError where the table's rows no longer come from those that the query's last batch left, which was
    merged into the version `after`. If the log was cleaned up since, a RESTORE is not noticed that is gone from it, or
    that was to a version later than `after`.

    `is_known`: the query has applied a batch since it began. Until then it builds on no rows that a new table may lack.
    """
    if table.version() == after + 1:
        return  # The batch's commit is the newest.
    files = Files(table.table_uri, storage_options)
    having = table.version()  # The version whose rows the table has, as far as the commits that were read say.
    restored = having
    for version in range(table.version(), after, -1):
        info = _commit_info(files, version)
        if info is None:
            if having <= after:
                way_out = f"The log by which it could be undone was cleaned up: {BEGIN_ANEW}"
                raise _lost(table.table_uri, query, f"after version {after}", restored, having, way_out)
            return
        if info.get(_QUERY) == query:
            if having < version:
                undo = f"RESTORE TABLE delta.`{table.table_uri}` TO VERSION AS OF {restored - 1}"
                way_out = f"Undo it by {undo}; or {BEGIN_ANEW}"
                raise _lost(table.table_uri, query, f"in version {version}", restored, having, way_out)
            return
        if version == having:
            having = version - 1
            if info.get("operation") == "RESTORE":
                having, restored = _target(info), version
            elif any(made in str(info.get("operation")) for made in _MADE_ANEW) and is_known():
                raise _replaced(table.table_uri, query, version)


def _commit_info(files: Files, version: int) -> Mapping[str, Any] | None:
    """The `commitInfo` of a commit; None where the log no longer has the commit, empty where the commit has none."""
    location = FileLocation("", commit_file(version))
    if not files.has(location):
        return None
    with files.open(location) as file:
        # Writers put it first, but they need not.
        found = (action for kind, action in actions(file.readall()) if kind == "commitInfo")
        return next(found, None) or {}


def _target(info: Mapping[str, Any]) -> int:
    version = str((info.get("operationParameters") or {}).get("version"))
    return int(version) if version.isdecimal() else _UNTOLD


def _lost(uri: str, query: str, batch: str, restored: int, having: int, way_out: str) -> StateError:
    to, lacks = ("a time", "may lack") if having == _UNTOLD else (f"version {having}", "lacks")
    return StateError(
        f"a RESTORE, which is version {restored} of the Delta table {uri}, took it back to {to}, so that it {lacks} "
        f"what the query {query!r} has committed last, {batch}. {way_out}"
    )


def _replaced(uri: str, query: str, version: int) -> StateError:
    return StateError(
        f"the Delta table {uri} was replaced in version {version}, as by CREATE OR REPLACE TABLE, since the query "
        f"{query!r} applied its last batch. If it has the rows of all batches up to that one, give the query another "
        f"name; else undo it by RESTORE TABLE delta.`{uri}` TO VERSION AS OF {version - 1}, or {BEGIN_ANEW}"
    )
