"""The staging directory as a whole: what it holds, what is removed, and where it may be."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from backfill.errors import StagingError
from backfill.staging import Staging
from tests.golden.values import MANIFESTS
from tests.staging.chunks import BATCHES, NAME, SCHEMA, numbers


def test_streams_do_not_see_each_other(staging: Staging, folder: Path) -> None:
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    other = Staging(str(folder)).of_stream("s2")
    assert not other.of_batch(7).exists(NAME)
    other.forget_all()
    other.forget_before(100)
    assert staging.of_batch(7).exists(NAME)


def test_what_lies_before_an_epoch_is_forgotten_and_nothing_else(staging: Staging, folder: Path) -> None:
    for epoch in (1, 9, 10, 11):
        staging.of_batch(epoch).write(NAME, SCHEMA, BATCHES)
    (folder / "s1" / "notes").mkdir()
    staging.forget_before(10)
    assert sorted(path.name for path in (folder / "s1").iterdir()) == ["10", "11", "notes"]


class Written(fs.LocalFileSystem):
    """A file system where somebody puts a file into a folder that is about to be removed, the first `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def delete_dir(self, path: str) -> None:
        if self.times:
            self.times -= 1
            raise OSError(errno.ENOTEMPTY, "Cannot delete directory: Directory not empty")
        super().delete_dir(path)


@pytest.mark.parametrize(
    "forget", [lambda of: of.of_batch(7).forget(), lambda of: of.forget_all()], ids=["epoch", "all"]
)
def test_a_folder_that_somebody_still_writes_to_is_removed_all_the_same(
    staging: Staging, folder: Path, forget: Callable[[Staging], object]
) -> None:
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    staging._folder._opened = Written(2), str(folder)
    forget(staging)
    assert not staging.of_batch(7).exists(NAME)
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    staging._folder._opened = Written(9), str(folder)
    with pytest.raises(StagingError, match="not empty"):
        forget(staging)


def test_an_older_folder_that_somebody_still_writes_to_is_removed_later(staging: Staging, folder: Path) -> None:
    for epoch in (1, 2, 3):
        staging.of_batch(epoch).write(NAME, SCHEMA, BATCHES)
    staging._folder._opened = Written(3), str(folder)
    staging.forget_before(3)
    assert sum(staging.of_batch(epoch).exists(NAME) for epoch in (1, 2)) == 1
    staging.forget_before(3)
    assert [epoch for epoch in (1, 2, 3) if staging.of_batch(epoch).exists(NAME)] == [3]


def test_one_epoch_is_forgotten(staging: Staging) -> None:
    staging.of_batch(1).write(NAME, SCHEMA, BATCHES)
    staging.of_batch(2).write(NAME, SCHEMA, BATCHES)
    staging.of_batch(1).forget()
    assert (staging.of_batch(1).exists(NAME), staging.of_batch(2).exists(NAME)) == (False, True)


def test_forgetting_what_was_never_there_changes_nothing(staging: Staging) -> None:
    staging.of_batch(1).forget()
    staging.forget_before(5)
    staging.forget_all()
    assert not staging.of_batch(1).exists(NAME)


def test_everything_is_forgotten(staging: Staging, folder: Path) -> None:
    staging.of_batch(1).write(NAME, SCHEMA, BATCHES)
    staging.forget_all()
    assert list(folder.iterdir()) == []


def test_a_reader_on_another_machine_finds_the_same_directory(staging: Staging) -> None:
    staging.of_batch(7).write(NAME, SCHEMA, BATCHES)
    there: Staging = pickle.loads(pickle.dumps(staging))  # noqa: S301 - our own bytes
    assert numbers(there.of_batch(7).read(NAME)) == [1, 2, 3, 4, 5, 6]


def test_a_uri_is_as_good_as_a_path(folder: Path) -> None:
    by_uri = Staging(folder.as_uri()).of_stream("s1")
    by_uri.of_batch(7).write(NAME, SCHEMA, BATCHES)
    assert Staging(str(folder)).of_stream("s1").of_batch(7).exists(NAME)


@pytest.mark.parametrize("uri", ["nowhere://bucket/staging", "file:///per%cent"])
def test_a_place_that_cannot_be_opened_is_refused(uri: str) -> None:
    with pytest.raises(StagingError, match=r"stagingDir cannot be opened: .*name another place"):
        Staging(uri).of_batch(1).exists(NAME)


def test_a_directory_that_is_not_shared_is_noticed(staging: Staging) -> None:
    with pytest.raises(StagingError, match="set stagingDir to a path or URI that the driver and all executors share"):
        staging.of_batch(7).require_shared()
    staging.of_batch(7).keep_manifest(MANIFESTS["first-attempt"])
    staging.of_batch(7).require_shared()
