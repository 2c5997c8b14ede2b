"""What goes wrong with a Delta table: definite or transient.

`deltalake` knows few types of errors, and what fails while rows come is a plain `Exception` with a text. So the text
decides, without the rows that it may show. Our errors tell its first line, without what may be a value of a row: what
stands in quotation marks, and numbers where one does not fit into a type. Of what a store answered, in the lines after
the first, they tell the reason, but no URL, which may have a signature; they also tell what the system said of a file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaProtocolError, TableNotFoundError

from backfill.errors import (
    BackfillError,
    ConnectionLostError,
    DatabaseSetupError,
    FileGoneError,
    TableBusyError,
    TableError,
    UnknownFeatureError,
)
from backfill.scarcity import scarcity
from backfill.upstream.delta.features import not_known
from backfill.upstream.delta.unusable import UNKNOWN, unusable

_GONE: Final = re.compile(
    r"object at location .* not found|no such file or directory|\bfile not found: ", re.IGNORECASE
)
_DENIED: Final = re.compile(r"access ?denied|permission denied", re.IGNORECASE)
_UNREACHED: Final = re.compile(r"error sending request|dns error", re.IGNORECASE)
# Looked for in a store's answer alone: elsewhere such a word is in a name, and such a number a version, size or value.
_FORBIDDEN: Final = re.compile(
    r"forbidden|unauthorized|unauthenticated|invalid ?credential|(?:expired|invalid)token|\b40[13]\b", re.IGNORECASE
)
_MAY_PASS: Final = re.compile(
    r"timed? ?out|connection|response body error|temporar|too many requests|\b(429|5\d\d)\b|"
    r"\b(InternalError|SlowDown|ServiceUnavailable)\)",  # of one object of those that S3 was to delete
    re.IGNORECASE,
)
_OF_STORE: Final = re.compile(r"Generic (?!LocalFileSystem)\w+ error")

_REQUEST: Final = re.compile(
    r"Error performing [A-Z]+ \S+ in .*?(?: - (?:Server returned non-2xx status code: )?|$)| for url \(\S+\)",
    re.MULTILINE,
)
_ANSWER: Final = re.compile(r"\ufeff?(?:<(?:\?xml|Error>)|\{).*")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\"(?:error|code|reason)\"\s*:\s*\"(\w+)\"")

_OF_SYSTEM: Final = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)

_PARTITION: Final = re.compile(r"(?<![^/\s])([^/\s=]+)=[^/]*")
"""A folder of a partition, in a path."""

_PARSED: Final = re.compile(r"(parse (?:value|string)): .*")
_UNFIT: Final = re.compile(r"\bcast|\bvalue|overflow|lose data|out of (?:bounds|range)|too large", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?<![\w.(,])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.)])")

_WITHOUT_REASON: Final = re.compile(r"Generic \w+ error$")
_TO_REASON: Final = 4
"""So many lines are told where the first has no reason: what was done to which file, and what was said of that."""

_TRACED: Final = re.compile(r"\d+: ")
"""The beginning of a line of a stack."""

_MOST_SHOWN: Final = 300

_APPEND_ONLY: Final = "append-only"
_ROWS: Final = "\nPreview of invalid data:"
"""After this come rows of a batch that a constraint refuses."""

_VALUE: Final = re.compile(r"([^'\"]*\b(?:Cast|Parser) error: [^'\"]*['\"]).*(?=['\"])", re.DOTALL)
"""The text up to a value, in quotation marks and perhaps of several lines, that does not fit into a type."""

_STATISTIC: Final = re.compile(r"(\bJson error: .*?: expected \w+ got ).*?(?=\n\s*\d+: |\Z)", re.DOTALL)
"""After the group, up to the stack, is a value of the table's log: the least of a column with another type now, say."""

_OF_DEFINITION: Final = re.compile(r"[^'\"]*Unsupported(?:: Table contains| Delta table type)")
"""Messages that begin so have types and features in quotation marks, and no values."""


def translated(error: Exception, uri: str) -> BackfillError:
    """The error as one of ours."""
    # The time that a request took, and numbers in its URL, must not be taken for the status of an answer.
    full = _without_rows(error)
    text, shown = _REQUEST.sub("", full), _shown(full)
    lacking = scarcity(error, shown) or _lacking(text, uri)
    if lacking is not None:
        return lacking
    if isinstance(error, TableNotFoundError):
        return TableError(f"there is no Delta table at {uri} ({shown}); check the option path")
    if _GONE.search(text):
        return FileGoneError(shown)
    if isinstance(error, CommitFailedError) and not not_known(text):
        return _not_committed(error, uri, shown)
    if (of_table := unusable(text, uri, shown)) is not None:
        return of_table
    if isinstance(error, DeltaProtocolError) or "unsupported" in text.lower():
        return UnknownFeatureError(f"the Delta table {uri} {UNKNOWN}: {shown}. Try a newer release of it")
    answer = text if _REQUEST.search(full) or _OF_STORE.search(text) else ""
    if _DENIED.search(text) or _FORBIDDEN.search(answer):
        return DatabaseSetupError(
            f"the storage of {uri} refused the access: {shown}. Credentials come from the environment of the driver "
            "and of the executors (AWS_…, AZURE_…, GOOGLE_…); a sink takes storage_options as well"
        )
    if _UNREACHED.search(text) or _MAY_PASS.search(answer):
        return ConnectionLostError(
            f"the storage of {uri} does not answer: {shown}. Start the query again when it answers"
        )
    return TableError(f"the Delta table {uri} cannot be used: {shown}")


def _lacking(text: str, uri: str) -> BackfillError | None:
    """The error for what the operating system refuses where the table is on a disk, and somebody can mend."""
    found = _OF_SYSTEM.search(text)
    if found is None:
        return None
    number = int(found[1] or found[2])
    refusal = OSError(number, os.strerror(number))
    if number in _FULL:
        return DatabaseSetupError(
            f"the Delta table {uri} cannot be written: {refusal}. Make room there and start the query again"
        )
    if number in _REFUSED:
        return DatabaseSetupError(
            f"the Delta table {uri} cannot be used: {refusal}. Let this process's account read it and, for a sink, "
            "write to it; then start the query again"
        )
    return scarcity(refusal)


def is_conflict(error: Exception) -> bool:
    """Whether another writer was faster, so that the same may be committed after it."""
    return isinstance(error, CommitFailedError) and _APPEND_ONLY not in str(error) and not not_known(str(error))


def is_gone(error: Exception) -> bool:
    """Whether a file is not there: a VACUUM may have removed it, if its version is not the latest any more."""
    return _GONE.search(_without_rows(error)) is not None


def _without_rows(error: Exception) -> str:
    text = _STATISTIC.sub(r"\1…", str(error), count=1)
    return _VALUE.sub(r"\1…", text, count=1).partition(_ROWS)[0]


def _not_committed(error: CommitFailedError, uri: str, shown: str) -> BackfillError:
    if is_conflict(error):
        return TableBusyError(
            f"another writer changed the Delta table {uri} at the same time: {shown}. Start the query again"
        )
    return TableError(
        f"no row of the Delta table {uri} can be updated or deleted: {shown}. Run ALTER TABLE delta.`{uri}` SET "
        "TBLPROPERTIES ('delta.appendOnly' = 'false'), or name another table"
    )


def _shown(text: str) -> str:
    text = re.sub(r"\x1b\[\d*m", "", text).removeprefix("C Data interface error: ")
    lines = [line.strip().removeprefix("↳ ") for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not _TRACED.match(line)]
    if _REQUEST.search(": ".join(lines)):
        codes = " ".join(of_xml or of_json for of_xml, of_json in _CODE.findall(text))
        lines = [_ANSWER.sub(codes, _REQUEST.sub("", ": ".join(lines)))]
    line = lines[0] if lines else "no reason was given"
    if _WITHOUT_REASON.search(line):
        line = ": ".join(lines[:_TO_REASON])
    if _OF_DEFINITION.match(line):
        return _cut(line)
    line = _PARTITION.sub(r"\1=…", line)
    if not _UNFIT.search(line):
        return _cut(re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", line).strip(" :"))
    # What stands in quotation marks may have one in it.
    line = re.sub(r"'.*'|\".*\"", "'…'", _PARSED.sub(r"\1: …", line))
    return _cut(_NUMBER.sub("…", line).strip(" :"))


def _cut(line: str) -> str:
    """The line without its middle, if it is long: the reason is at the end, behind the names of files."""
    half = _MOST_SHOWN // 2
    return line if len(line) <= _MOST_SHOWN else f"{line[:half]} … {line[-half:]}"


@contextmanager
def translating(uri: str) -> Iterator[None]:
    """Raises the errors of `deltalake`, and of what reads its rows, as ours."""
    try:
        yield
    except Exception as error:  # deltalake raises Exception itself while rows come
        # A mistake of ours is not to be taken for one of the table.
        ours = (BackfillError, AssertionError, AttributeError, IndexError, NameError, TypeError)
        if isinstance(error, ours) and not isinstance(error, pa.ArrowException):
            raise
        raise translated(error, uri) from None
