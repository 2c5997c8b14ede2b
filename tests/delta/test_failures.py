"""The text of an error decides what it becomes; a number in it is a status only where a request was answered."""

from __future__ import annotations

import errno
import resource
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from backfill.errors import BackfillError, ConnectionLostError, DatabaseSetupError, DriverError, TableError
from backfill.options import parse
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.failures import translated, translating
from backfill.upstream.delta.tables.opening import open_latest
from backfill.vnode import WHOLE_TABLE
from tests.delta import vectors

ANSWER = "Error performing GET http://store/t/_delta_log/512.json in 429ms - Server returned non-2xx status code: "

UNDELETED = "Generic S3 error\n ↳ DeleteObjects request failed for key t/_delta_log/0.json: "

LOCAL = "Generic LocalFileSystem error\n    \x1b[31m↳\x1b[0m Unable to copy data to file\n     \x1b[31m↳\x1b[0m "
MAKING = 'Could not create local directory: /t\nError: Os { code: 30, kind: ReadOnlyFilesystem, message: "…" }'


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (f"{LOCAL}No space left on device (os error {errno.ENOSPC})\n", DatabaseSetupError, "No space left on device"),
        (f"{LOCAL}Disk quota exceeded (os error {errno.EDQUOT})\n", DatabaseSetupError, "Disk quota exceeded"),
        (f"{LOCAL}Permission denied (os error {errno.EACCES})\n", DatabaseSetupError, "Let this process's account"),
        (f"{LOCAL}Too many open files (os error {errno.EMFILE})\n", DriverError, "ulimit -n"),
        (f"{LOCAL}Input/output error (os error {errno.EIO})\n", TableError, "Input/output error"),
        (MAKING, DatabaseSetupError, "Read-only file system"),
    ],
)
def test_what_the_operating_system_refuses_is_reported_with_what_to_do(
    text: str, kind: type[BackfillError], expected: str
) -> None:
    found = translated(TableNotFoundError(text) if text == MAKING else OSError(text), "/t")
    assert type(found) is kind
    assert expected in found.message


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Invalid table version: 429", TableError),
        ("Invalid table version: 403", TableError),
        ("Integer value 512 not in range: -128 to 127", TableError),
        ("could not allocate block of size 512.0 KiB", TableError),
        (f"{ANSWER}404 Not Found", TableError),
        (f"{ANSWER}403 Forbidden", DatabaseSetupError),
        (f"{ANSWER}401 ", DatabaseSetupError),
        (f"{ANSWER}429 ", ConnectionLostError),
        (f"{ANSWER}503 ", ConnectionLostError),
        ("error sending request", ConnectionLostError),
        (f"{ANSWER}400 Bad Request: <Error><Code>ExpiredToken</Code></Error>", DatabaseSetupError),
        ("Generic S3 error: operation timed out", ConnectionLostError),
        (f"{UNDELETED}Please reduce your request rate. (code\n ↳ SlowDown)", ConnectionLostError),
        (
            f"{UNDELETED}We encountered an internal error. Please try again. (code\n ↳ InternalError)",
            ConnectionLostError,
        ),
        (f"{UNDELETED}Access Denied (code\n ↳ AccessDenied)", DatabaseSetupError),
        ("Object Store error: Generic S3 error: HTTP error: request or response body error", ConnectionLostError),
        ("Generic LocalFileSystem error: Unable to open file /t/temporary_orders/a.parquet", TableError),
        ("No field named connection_id", TableError),
        ("Parquet error in temporary_orders/a.parquet: Corrupt footer", TableError),
        ("No field named forbidden", TableError),
        ("Permission denied (os error 13)", DatabaseSetupError),
    ],
)
def test_a_number_or_a_word_is_of_a_status_where_a_store_has_answered(text: str, kind: type[BackfillError]) -> None:
    assert type(translated(Exception(text), "s3://bucket/t")) is kind


@pytest.mark.parametrize(
    "value",
    [
        "Unsupported: Table contains words",
        "Unsupported Delta table type: words",
        "Feature 'words' is not supported",
        "words of a catalog-managed table",
        "Cannot cast column 'words' from 'a(b)'",
        "words that failed validation check",
        "words (os error 28)",
        "words: no such file or directory",
        "error sending request for words",
        "permission denied for words",
        "words are unsupported",
        "a' Unsupported: Table contains words",
        "words\nin lines",
        "words\nPreview of invalid data:\n",
    ],
)
def test_a_rows_value_is_neither_shown_nor_taken_for_an_error_of_the_table(tmp_path: Path, value: str) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "v": [value]}))
    retyped = Schema.from_arrow(pa.schema([("id", pa.int64()), ("v", pa.int64())])).to_json()
    vectors.commit(tmp_path, [{"metaData": {**vectors.definition(tmp_path), "schemaString": retyped}}])
    upstream = DeltaUpstream(parse({"path": str(tmp_path), "keyColumns": "id"}))
    with pytest.raises(TableError, match="Cannot cast string '…' to value of Int64 type") as refused:
        list(upstream.reader().scan([WHOLE_TABLE]))
    assert "words" not in refused.value.message
    assert not {"feature", "constraint"}.intersection(refused.value.message.split())


@pytest.mark.parametrize("value", ["words", 'two"words', "words\nin lines", "words (os error 28)", 77])
def test_a_statistic_of_a_column_that_does_not_fit_is_not_shown(tmp_path: Path, value: str | int) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "v": [value]}))
    retyped = Schema.from_arrow(pa.table({"id": [1], "v": [True]}).schema).to_json()
    vectors.commit(tmp_path, [{"metaData": {**vectors.definition(tmp_path), "schemaString": retyped}}])
    upstream = DeltaUpstream(parse({"path": str(tmp_path), "keyColumns": "id"}))
    with pytest.raises(TableError, match=r"expected boolean got …$"):
        list(upstream.reader().scan([WHOLE_TABLE]))


def test_the_features_that_are_not_known_are_called_what_the_sql_calls_them() -> None:
    text = 'Unsupported table features required: [ClusteredTable, VariantShreddingPreview, Unknown("collations")]'
    found = translated(CommitFailedError(text), "/t").message
    assert "the feature clustering, variantShredding-preview, collations. Try" in found
    dropped = [f"ALTER TABLE delta.`/t` DROP FEATURE {name}" for name in ("clustering", "'variantShredding-preview'")]
    assert "; ".join(dropped) in found


def test_the_reason_is_shown_also_behind_long_names_and_many_causes() -> None:
    file = f"file t/{'part-' * 40}.parquet"
    denied = f"{ANSWER}403 Forbidden: <Error><Code>RequestTimeTooSkewed</Code></Error>"
    found = translated(OSError(f"Parquet error: {file}: The operation lacked privileges for {file}: {denied}"), "/t")
    assert "403 Forbidden: RequestTimeTooSkewed. Credentials" in found.message
    assert len(found.message) < 500, "most of the names is left out"
    causes = ("Kernel error -> Generic S3 error", "Error getting list response body", "HTTP error")
    found = translated(OSError("\n ↳ ".join((*causes, "request or response body error"))), "/t")
    assert "HTTP error: request or response body error. Start" in found.message


def test_what_a_process_lacks_is_not_the_tables_fault(table: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryFile() as next_one:
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one.fileno(), limits[1]))
        try:
            with pytest.raises(DriverError, match=r"may not open more files: .*Too many open files.*ulimit -n"):
                open_latest(str(table))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with pytest.raises(DriverError, match="too little memory: malloc"), translating(str(table)):
        raise pa.ArrowMemoryError("malloc of size 64 failed")


def test_what_the_system_says_of_a_file_is_reported_without_the_partition_it_lies_in() -> None:
    causes = ("Unable to open file /t/p=Eve/a.parquet", "Disk failure")
    text = "\n ↳ ".join(("Kernel error -> Generic LocalFileSystem error", *causes))
    found = translated(OSError(f"{text}\n0: <unknown>"), "/t").message
    assert found.endswith("Generic LocalFileSystem error: Unable to open file /t/p=…/a.parquet: Disk failure")
