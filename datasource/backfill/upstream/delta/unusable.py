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
    said = re.split(r"['\"]", text, maxsplit=1)[0]
    if _CONSTRAINED in said:
        return TableError(
            f"a constraint of the Delta table {uri} refuses a row of the batch: {shown}. Run ALTER TABLE delta.`{uri}` "
            "DROP CONSTRAINT …, or ALTER COLUMN … DROP NOT NULL, and start the query again. A generated column has to "
            "be one of the batch, with the value that it has by its expression"
        )
    if _NO_CHECKPOINT in said:
        return TableError(
            f"the log of the Delta table {uri} names a checkpoint that is not there: {shown}. Put it back; or, if the "
            "log still begins with version 0 or with an older checkpoint, remove its file _last_checkpoint, which only "
            "saves time"
        )
    if (column := _OTHER_TYPE.match(text)) is not None:
        return TableError(
            f"the column {column[1]!r} of the Delta table {uri} has another type in some of its files, which deltalake "
            "does not read, as from before a struct within a map got a field. Have them written anew, as by UPDATE "
            f"delta.`{uri}` SET `{column[1]}` = `{column[1]}`; a source may leave it out with the option columns"
        )
    if _MANAGED in said:
        return UnknownFeatureError(
            f"a catalog manages the Delta table {uri} (its feature catalogManaged): the commits that were made last "
            "the catalog alone may know, and here a table is known by its files. Name a copy that no catalog manages, "
            "in a folder of its own"
        )
    if features := not_known(text):
        return UnknownFeatureError(
            f"the Delta table {uri} {UNKNOWN}: the feature {', '.join(features)}. Try a newer release of it, or run "
            f"{dropping(uri, features)}; or name another table"
        )
    if (store := _ELSEWHERE.search(said)) is not None:
        return TableError(
            f"files of the Delta table {uri} are in {store[1]}, as those of a shallow clone may be, and deltalake only "
            "reads files whose names begin as the table's does. If that is the same store by another name, as s3a:// "
            "is of s3://, let path begin in the same way; else use a copy with files of its own, as a deep clone has"
        )
    return None
