"""Chunks in the staging directory: nothing has its name before it is whole, and damage is noticed."""

from __future__ import annotations

import errno
import os
import re
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from backfill.errors import BackfillError, DriverError, StagingError, StagingUnreachableError
from backfill.staging import Staging
from backfill.staging.manifest import Manifest
from tests.full_disk import room_for
from tests.lost_power import Disk
from tests.staging.chunks import BATCHES, NAME, SCHEMA, batch, numbers


def test_what_was_staged_comes_back(staging: Staging) -> None:
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    assert staging.of_batch(7).exists(NAME)
    assert numbers(staging.of_batch(7).read(NAME)) == [1, 2, 3, 4, 5, 6]
    assert all(item.schema == SCHEMA for item in staging.of_batch(7).read(NAME))


@pytest.mark.parametrize("root", ["/", "file:///"])
def test_the_root_of_a_file_system_is_not_the_folder_that_a_process_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.chdir(tmp_path)
    staging = Staging(root).of_stream(str(tmp_path / "s1").lstrip("/"))
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    assert (tmp_path / "s1" / "7" / NAME).exists()


def test_writing_through_passes_every_batch_on(staging: Staging) -> None:
    assert list(staging.of_batch(7).write_through(NAME, SCHEMA, BATCHES)) == BATCHES


def test_a_chunk_without_rows_is_a_chunk(staging: Staging) -> None:
    assert list(staging.of_batch(7).write_through(NAME, SCHEMA, [])) == []
    assert staging.of_batch(7).exists(NAME)
    assert numbers(staging.of_batch(7).read(NAME)) == []


def test_the_file_has_its_name_before_the_last_batch_is_passed_on_and_not_earlier(staging: Staging) -> None:
    passing = staging.of_batch(7).write_through(NAME, SCHEMA, BATCHES)
    seen = [(item, staging.of_batch(7).exists(NAME)) for item in passing]
    assert seen == [(BATCHES[0], False), (BATCHES[1], False), (BATCHES[2], True)]


def test_a_file_system_that_moves_nothing_has_it_copied(staging: Staging, file: Path) -> None:
    """Azure's without hierarchical namespaces is such a file system."""

    class Unmoving(fs.LocalFileSystem):
        def move(self, src: str, dest: str) -> None:  # noqa: ARG002
            raise pa.ArrowNotImplementedError("FileSystem::Move() is not implemented")

    staging._folder._opened = Unmoving(), str(file.parents[2])
    for _ in range(2):
        staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
        staging.of_batch(7).keep_manifest(Manifest(()))
    assert numbers(staging.of_batch(7).read(NAME)) == [1, 2, 3, 4, 5, 6]
    assert {found.name for found in file.parent.iterdir()} == {NAME, "manifest.json"}


def test_a_reader_that_is_given_up_leaves_nothing(staging: Staging, file: Path) -> None:
    passing = staging.of_batch(7).write_through(NAME, SCHEMA, BATCHES)
    next(passing)
    passing.close()
    assert not staging.of_batch(7).exists(NAME)
    assert list(file.parent.iterdir()) == []


def test_a_reader_that_fails_leaves_nothing_and_says_why(staging: Staging, file: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from BATCHES
        raise ConnectionError("cut")

    with pytest.raises(ConnectionError, match="cut"):
        staging.of_batch(7).write(NAME, SCHEMA, failing())
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1000, 7600])
def test_a_disk_that_is_full_is_reported_in_one_sentence(staging: Staging, file: Path, size: int) -> None:
    """Closing the file fails as well, and adds nothing to the error."""
    rows = batch(*Random(0).choices(range(1 << 40), k=1000))
    with room_for(size), pytest.raises(StagingError, match=r"stagingDir cannot be written: .*File too large"):
        staging.of_batch(7).write(NAME, SCHEMA, [rows])
    assert list(file.parent.iterdir()) == []


def test_where_no_more_files_may_be_opened_staged_ones_are_not_reported_as_lost(staging: Staging) -> None:
    files = staging.of_batch(7)
    files.write(NAME, SCHEMA, BATCHES)
    files.keep_changes(1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryFile() as next_one:
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one.fileno(), limits[1]))
        try:
            with pytest.raises(DriverError, match="may not open more files"):
                list(files.read(NAME))
            with pytest.raises(DriverError, match="may not open more files"):
                files.change_files()
            with pytest.raises(DriverError, match="may not open more files"):
                files.write(NAME, SCHEMA, BATCHES)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("AWS Error SLOW_DOWN during UploadPart operation: Please reduce your request rate.", StagingUnreachableError),
        ("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body.", StagingUnreachableError),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7", StagingUnreachableError),
        ("AWS Error NO_SUCH_UPLOAD during CompleteMultipartUpload operation: No such", StagingUnreachableError),
        ("1 errors when deleting objects\n- key 'k': Please reduce your request rate.", StagingUnreachableError),
        ("1 errors when deleting objects\n- key 'k': Access Denied", StagingError),
        ("Azure Error: [] Fail to get a new connection for: http://127.0.0.1:1. Could not", StagingUnreachableError),
        ("Azure Error: [ServerBusy] 503 The server is busy.", StagingUnreachableError),
        ("google::cloud::Status(UNAVAILABLE: Retry policy exhausted in GetObjectMetadata", StagingUnreachableError),
        ("google::cloud::Status(PERMISSION_DENIED: Permanent error in GetObjectMetadata", StagingError),
        ("AWS Error ACCESS_DENIED during PutObject operation: Access Denied", StagingError),
        ("Azure Error: [ContainerNotFound] 404 The specified container does not exist.", StagingError),
    ],
)
def test_whether_a_store_may_answer_later_follows_from_its_error(
    staging: Staging, folder: Path, text: str, kind: type[BackfillError]
) -> None:
    class Refusing:
        def __getattr__(self, _: str) -> Any:
            raise OSError(text)

    refusing: Any = Refusing()
    staging._folder._opened = refusing, str(folder)
    uses: list[Callable[[], object]] = [
        lambda: staging.of_batch(7).exists(NAME),
        lambda: staging.of_batch(7).keep_manifest(Manifest(())),
        lambda: staging.of_batch(7).change_files(),
        lambda: list(staging.of_batch(7).read(NAME)),
    ]
    for use in uses:
        with pytest.raises(kind, match=re.escape(text)) as found:
            use()
        assert type(found.value) is kind


def test_two_attempts_at_once_do_not_disturb_each_other(staging: Staging) -> None:
    one = staging.of_batch(7).write_through(NAME, SCHEMA, BATCHES)
    two = staging.of_batch(7).write_through(NAME, SCHEMA, BATCHES)
    for _ in BATCHES:
        next(one)
        next(two)
    assert numbers(staging.of_batch(7).read(NAME)) == [1, 2, 3, 4, 5, 6]


def test_a_file_is_replaced_in_one_step_while_it_is_read(staging: Staging) -> None:
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    reading = staging.of_batch(7).read(NAME)
    first = next(reading)
    staging.of_batch(7).write(NAME, SCHEMA, [batch(9)])
    assert numbers(iter([first, *reading])) == [1, 2, 3, 4, 5, 6]
    assert numbers(staging.of_batch(7).read(NAME)) == [9]


def test_what_was_passed_on_to_its_end_outlasts_a_loss_of_power(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, files = Disk(tmp_path, monkeypatch), staging.of_batch(7)
    files.keep_manifest(Manifest(()))
    passing = files.write_through(NAME, SCHEMA, BATCHES)
    assert [next(passing) for _ in BATCHES] == BATCHES
    disk.lose_power()
    assert files.manifest() == Manifest(())
    assert numbers(files.read(NAME)) == [1, 2, 3, 4, 5, 6]


def _refusing(number: int) -> Callable[[int], None]:
    def sync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    return sync


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EPERM])
def test_a_file_system_that_syncs_nothing_will_do(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", _refusing(number))
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    assert numbers(staging.of_batch(7).read(NAME)) == [1, 2, 3, 4, 5, 6]


def test_a_file_that_does_not_get_to_the_disk_does_not_get_its_name(
    staging: Staging, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", _refusing(errno.EIO))
    with pytest.raises(StagingError, match=r"stagingDir cannot be written: .*Input/output error"):
        staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("at", range(8))
def test_a_file_that_was_cut_short_is_refused(staging: Staging, file: Path, at: int) -> None:
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    whole = file.read_bytes()
    for length in range(at, len(whole), 8):
        file.write_bytes(whole[:length])
        with pytest.raises(StagingError, match=f"{NAME} of epoch 7 cannot be read"):
            list(staging.of_batch(7).read(NAME))


def test_a_file_with_wrong_bytes_is_refused_or_read(staging: Staging, file: Path) -> None:
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    whole = file.read_bytes()
    refused = 0
    for seed in range(500):
        random = Random(seed)
        spoilt = bytearray(whole)
        for _ in range(random.randrange(1, 5)):
            spoilt[random.randrange(len(spoilt))] = random.randrange(256)
        file.write_bytes(spoilt)
        try:
            list(staging.of_batch(7).read(NAME))
        except StagingError:
            refused += 1
    assert refused


def test_a_file_that_has_gone_is_refused_with_what_to_do(staging: Staging) -> None:
    with pytest.raises(StagingError, match="start over with a fresh checkpointLocation and onExistingState=restart"):
        list(staging.of_batch(7).read(NAME))
