"""The staging directory as a whole: what is in it, what is forgotten, and where it may be."""

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
    staging.write(7, NAME, SCHEMA, BATCHES)
    other = Staging(str(folder)).of_stream("s2")
    assert not other.exists(7, NAME)
    other.forget_all()
    other.forget_before(100)
    assert staging.exists(7, NAME)


def test_what_lies_before_an_epoch_is_forgotten_and_nothing_else(staging: Staging, folder: Path) -> None:
    for epoch in (1, 9, 10, 11):
        staging.write(epoch, NAME, SCHEMA, BATCHES)
    (folder / "s1" / "notes").mkdir()
    staging.forget_before(10)
    assert sorted(path.name for path in (folder / "s1").iterdir()) == ["10", "11", "notes"]


class Written(fs.LocalFileSystem):
    """Somebody puts a file into a folder whenever that is about to be removed, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def delete_dir(self, path: str) -> None:
        if self.times:
            self.times -= 1
            raise OSError(errno.ENOTEMPTY, "Cannot delete directory: Directory not empty")
        super().delete_dir(path)


@pytest.mark.parametrize("forget", [lambda of: of.forget(7), lambda of: of.forget_all()], ids=["epoch", "all"])
def test_a_folder_that_somebody_still_writes_to_is_removed_all_the_same(
    staging: Staging, folder: Path, forget: Callable[[Staging], object]
) -> None:
    staging.write(7, NAME, SCHEMA, BATCHES)
    staging._opened = Written(2), str(folder)
    forget(staging)
    assert not staging.exists(7, NAME)
    staging.write(7, NAME, SCHEMA, BATCHES)
    staging._opened = Written(9), str(folder)
    with pytest.raises(StagingError, match="not empty"):
        forget(staging)


def test_an_older_folder_that_somebody_still_writes_to_is_removed_later(staging: Staging, folder: Path) -> None:
    for epoch in (1, 2, 3):
        staging.write(epoch, NAME, SCHEMA, BATCHES)
    staging._opened = Written(3), str(folder)
    staging.forget_before(3)
    assert sum(staging.exists(epoch, NAME) for epoch in (1, 2)) == 1
    staging.forget_before(3)
    assert [epoch for epoch in (1, 2, 3) if staging.exists(epoch, NAME)] == [3]


def test_one_epoch_is_forgotten(staging: Staging) -> None:
    staging.write(1, NAME, SCHEMA, BATCHES)
    staging.write(2, NAME, SCHEMA, BATCHES)
    staging.forget(1)
    assert (staging.exists(1, NAME), staging.exists(2, NAME)) == (False, True)


def test_forgetting_what_was_never_there_changes_nothing(staging: Staging) -> None:
    staging.forget(1)
    staging.forget_before(5)
    staging.forget_all()
    assert not staging.exists(1, NAME)


def test_everything_is_forgotten(staging: Staging, folder: Path) -> None:
    staging.write(1, NAME, SCHEMA, BATCHES)
    staging.forget_all()
    assert list(folder.iterdir()) == []


def test_a_reader_on_another_machine_finds_the_same_directory(staging: Staging) -> None:
    staging.write(7, NAME, SCHEMA, BATCHES)
    there: Staging = pickle.loads(pickle.dumps(staging))  # noqa: S301 - our own bytes
    assert numbers(there.read(7, NAME)) == [1, 2, 3, 4, 5, 6]


def test_a_uri_is_as_good_as_a_path(folder: Path) -> None:
    by_uri = Staging(folder.as_uri()).of_stream("s1")
    by_uri.write(7, NAME, SCHEMA, BATCHES)
    assert Staging(str(folder)).of_stream("s1").exists(7, NAME)


@pytest.mark.parametrize("uri", ["nowhere://bucket/staging", "file:///per%cent"])
def test_a_place_that_cannot_be_opened_is_refused(uri: str) -> None:
    with pytest.raises(StagingError, match=r"stagingDir cannot be opened: .*name another place"):
        Staging(uri).exists(1, NAME)


def test_a_directory_that_is_not_shared_is_noticed(staging: Staging) -> None:
    with pytest.raises(StagingError, match="set stagingDir to a path or URI that the driver and all executors share"):
        staging.require_shared(7)
    staging.keep_manifest(7, MANIFESTS["first-attempt"])
    staging.require_shared(7)
