"""What `deltalake` cannot read of a table, or not write to it, by the text of its error."""

from __future__ import annotations

import re
from typing import Final

from backfill.errors import BackfillError, TableError, UnknownFeatureError
from backfill.upstream.delta.features import dropping, not_known

UNKNOWN: Final = "uses what the package deltalake does not know"
_CONSTRAINED: Final = "failed validation check"
_NO_CHECKPOINT: Final = "Had a _last_checkpoint hint"
_MANAGED: Final = "catalog-managed table"
_OTHER_TYPE: Final = re.compile(r"[^'\"]*Cannot cast column '(.*?)' from '(?=\w+\()")
_ELSEWHERE: Final = re.compile(r"No suitable object store found for (\S+/)")


def unusable(text: str, uri: str, shown: str) -> BackfillError | None:
    """The error for what `deltalake` finds in the table itself, and somebody can mend; None for any other text."""
    # Behind a quotation mark may be the value of a row, which says nothing of the table.
    unquoted = re.split(r"['\"]", text, maxsplit=1)[0]
    if _CONSTRAINED in unquoted:
        return TableError(
            f"a constraint of the Delta table {uri} refuses a row of the batch: {shown}. Run ALTER TABLE "
            f"delta.`{uri}` DROP CONSTRAINT …, or ALTER COLUMN … DROP NOT NULL, and start the query again. If a "
            "column is generated, the batch needs it too, with the value of its expression"
        )
    if _NO_CHECKPOINT in unquoted:
        return TableError(
            f"the log of the Delta table {uri} names a missing checkpoint: {shown}. Restore it; or, if the log still "
            "begins with version 0 or with an older checkpoint, remove its file _last_checkpoint, which only saves "
            "time"
        )
    if (column := _OTHER_TYPE.match(text)) is not None:
        return TableError(
            f"the column {column[1]!r} of the Delta table {uri} has another type in some of its files, which "
            "deltalake cannot read, as from before a struct within a map got a field. Rewrite those files, as by "
            f"UPDATE delta.`{uri}` SET `{column[1]}` = `{column[1]}`; a source may leave it out with the option "
            "columns"
        )
    if _MANAGED in unquoted:
        return UnknownFeatureError(
            f"a catalog manages the Delta table {uri} (feature catalogManaged): only the catalog may know the latest "
            "commits, and this source reads a table by its files. Name a copy in its own folder that no catalog "
            "manages"
        )
    if features := not_known(text):
        return UnknownFeatureError(
            f"the Delta table {uri} {UNKNOWN}: the feature {', '.join(features)}. Try a newer release of it, or run "
            f"{dropping(uri, features)}; or name another table"
        )
    if (store := _ELSEWHERE.search(unquoted)) is not None:
        return TableError(
            f"files of the Delta table {uri} are in {store[1]}, as those of a shallow clone may be, and deltalake "
            "only reads files in the table's own store. If it is the same store under another name, as s3a:// and "
            "s3:// are, begin path with that name; else use a copy with its own files, such as a deep clone"
        )
    return None
