"""The staging directory: nothing has its name before it is whole, and damage is noticed."""

from __future__ import annotations

import errno
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from backfill.errors import BackfillError, StagingError, StagingUnreachableError
from backfill.plan import Split
from backfill.staging import Staging
from backfill.staging.manifest import Later, Manifest, PlannedSplit
from backfill.vnode import WHOLE_TABLE, KeyRange
from tests.core.strategies import damaged, manifests
from tests.full_disk import room_for
from tests.golden.values import MANIFESTS

SCHEMA = pa.schema([pa.field("n", pa.int64())])
NAME = "chunk-0-1.arrow"


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=SCHEMA)


BATCHES = [batch(1, 2), batch(3), batch(4, 5, 6)]


def numbers(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    return [number for item in batches for number in item["n"].to_pylist()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def staging(folder: Path) -> Staging:
    return Staging(str(folder)).of_stream("s1")


@pytest.fixture
def file(folder: Path) -> Path:
    return folder / "s1" / "7" / NAME


# -- chunks ------------------------------------------------------------------------------------------------------


def test_what_was_staged_comes_back(staging: Staging) -> None:
    staging.write(7, NAME, SCHEMA, BATCHES)
    assert staging.exists(7, NAME)
    assert numbers(staging.read(7, NAME)) == [1, 2, 3, 4, 5, 6]
    assert all(item.schema == SCHEMA for item in staging.read(7, NAME))


@pytest.mark.parametrize("root", ["/", "file:///"])
def test_the_root_of_a_file_system_is_not_the_folder_that_a_process_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.chdir(tmp_path)
    staging = Staging(root).of_stream(str(tmp_path / "s1").lstrip("/"))
    staging.write(7, NAME, SCHEMA, BATCHES)
    assert (tmp_path / "s1" / "7" / NAME).exists()


def test_writing_through_passes_every_batch_on(staging: Staging) -> None:
    assert list(staging.write_through(7, NAME, SCHEMA, BATCHES)) == BATCHES


def test_a_chunk_without_rows_is_a_chunk(staging: Staging) -> None:
    assert list(staging.write_through(7, NAME, SCHEMA, [])) == []
    assert staging.exists(7, NAME)
    assert numbers(staging.read(7, NAME)) == []


def test_the_file_has_its_name_before_the_last_batch_is_passed_on_and_not_earlier(staging: Staging) -> None:
    passing = staging.write_through(7, NAME, SCHEMA, BATCHES)
    seen = [(item, staging.exists(7, NAME)) for item in passing]
    assert seen == [(BATCHES[0], False), (BATCHES[1], False), (BATCHES[2], True)]


def test_a_file_system_that_moves_nothing_has_it_copied(staging: Staging, file: Path) -> None:
    """Such as Azure's without hierarchical namespaces."""

    class Unmoving(fs.LocalFileSystem):
        def move(self, src: str, dest: str) -> None:  # noqa: ARG002
            raise pa.ArrowNotImplementedError("FileSystem::Move() is not implemented")

    staging._opened = Unmoving(), str(file.parents[2])
    for _ in range(2):
        staging.write(7, NAME, SCHEMA, BATCHES)
        staging.keep_manifest(7, Manifest(()))
    assert numbers(staging.read(7, NAME)) == [1, 2, 3, 4, 5, 6]
    assert {found.name for found in file.parent.iterdir()} == {NAME, "manifest.json"}


def test_a_reader_that_is_given_up_leaves_nothing(staging: Staging, file: Path) -> None:
    passing = staging.write_through(7, NAME, SCHEMA, BATCHES)
    next(passing)
    passing.close()
    assert not staging.exists(7, NAME)
    assert list(file.parent.iterdir()) == []


def test_a_reader_that_fails_leaves_nothing_and_says_why(staging: Staging, file: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from BATCHES
        raise ConnectionError("cut")

    with pytest.raises(ConnectionError, match="cut"):
        staging.write(7, NAME, SCHEMA, failing())
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1000, 7600])
def test_a_disk_that_is_full_is_told_in_one_sentence(staging: Staging, file: Path, size: int) -> None:
    """Closing the file fails as well."""
    rows = batch(*Random(0).choices(range(1 << 40), k=1000))
    with room_for(size), pytest.raises(StagingError, match=r"stagingDir cannot be written: .*File too large"):
        staging.write(7, NAME, SCHEMA, [rows])
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("AWS Error SLOW_DOWN during UploadPart operation: Please reduce your request rate.", StagingUnreachableError),
        ("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body.", StagingUnreachableError),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7", StagingUnreachableError),
        ("Azure Error: [] Fail to get a new connection for: http://127.0.0.1:1. Could not", StagingUnreachableError),
        ("Azure Error: [ServerBusy] 503 The server is busy.", StagingUnreachableError),
        ("google::cloud::Status(UNAVAILABLE: Retry policy exhausted in GetObjectMetadata", StagingUnreachableError),
        ("google::cloud::Status(PERMISSION_DENIED: Permanent error in GetObjectMetadata", StagingError),
        ("AWS Error ACCESS_DENIED during PutObject operation: Access Denied", StagingError),
        ("Azure Error: [ContainerNotFound] 404 The specified container does not exist.", StagingError),
    ],
)
def test_whether_a_store_may_answer_later_is_told_by_what_it_said(
    staging: Staging, folder: Path, said: str, kind: type[BackfillError]
) -> None:
    class Refusing:
        def __getattr__(self, _: str) -> Any:
            raise OSError(said)

    refusing: Any = Refusing()
    staging._opened = refusing, str(folder)
    uses: list[Callable[[], object]] = [
        lambda: staging.exists(7, NAME),
        lambda: staging.keep_manifest(7, Manifest(())),
        lambda: staging.change_files(7),
        lambda: list(staging.read(7, NAME)),
    ]
    for use in uses:
        with pytest.raises(kind, match=re.escape(said)) as found:
            use()
        assert type(found.value) is kind


def test_two_attempts_at_once_do_not_disturb_each_other(staging: Staging) -> None:
    one = staging.write_through(7, NAME, SCHEMA, BATCHES)
    two = staging.write_through(7, NAME, SCHEMA, BATCHES)
    for _ in BATCHES:
        next(one)
        next(two)
    assert numbers(staging.read(7, NAME)) == [1, 2, 3, 4, 5, 6]


def test_a_file_is_replaced_in_one_step_while_it_is_read(staging: Staging) -> None:
    staging.write(7, NAME, SCHEMA, BATCHES)
    reading = staging.read(7, NAME)
    first = next(reading)
    staging.write(7, NAME, SCHEMA, [batch(9)])
    assert numbers(iter([first, *reading])) == [1, 2, 3, 4, 5, 6]
    assert numbers(staging.read(7, NAME)) == [9]


@pytest.mark.parametrize("at", range(8))
def test_a_file_that_was_cut_short_is_refused(staging: Staging, file: Path, at: int) -> None:
    staging.write(7, NAME, SCHEMA, BATCHES)
    whole = file.read_bytes()
    for length in range(at, len(whole), 8):
        file.write_bytes(whole[:length])
        with pytest.raises(StagingError, match=f"{NAME} of epoch 7 cannot be read"):
            list(staging.read(7, NAME))


def test_a_file_with_wrong_bytes_is_refused_or_read(staging: Staging, file: Path) -> None:
    staging.write(7, NAME, SCHEMA, BATCHES)
    whole = file.read_bytes()
    refused = 0
    for seed in range(500):
        random = Random(seed)
        spoilt = bytearray(whole)
        for _ in range(random.randrange(1, 5)):
            spoilt[random.randrange(len(spoilt))] = random.randrange(256)
        file.write_bytes(spoilt)
        try:
            list(staging.read(7, NAME))
        except StagingError:
            refused += 1
    assert refused


def test_a_file_that_has_gone_is_refused_with_what_to_do(staging: Staging) -> None:
    with pytest.raises(StagingError, match="start over with a fresh checkpointLocation and onExistingState=restart"):
        list(staging.read(7, NAME))


# -- the directory -----------------------------------------------------------------------------------------------


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


# -- manifests ---------------------------------------------------------------------------------------------------


def test_a_manifest_is_there_once_it_is_kept_and_may_be_replaced(staging: Staging) -> None:
    assert staging.manifest(7) is None
    for manifest in MANIFESTS.values():
        staging.keep_manifest(7, manifest)
        assert staging.manifest(7) == manifest


def test_how_many_files_of_changes_there_are_is_written_to_the_letter_and_read_again(
    staging: Staging, file: Path
) -> None:
    listed = file.with_name("changes.json")
    staging.keep_changes(7, 3)
    assert listed.read_text() == '{"version": 1, "files": 3}'
    assert staging.change_files(7) == 3
    listed.write_text('{"version": 2, "files": 3}')
    with pytest.raises(StagingError, match="is of version 2, and this release reads 1"):
        staging.change_files(7)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "files": "3"}', "null"])
def test_what_is_no_list_of_changes_is_refused_with_what_to_do(staging: Staging, file: Path, text: str) -> None:
    staging.keep_changes(7, 3)
    file.with_name("changes.json").write_text(text)
    with pytest.raises(StagingError, match=r"epoch 7 .*cannot be read.*onExistingState=restart"):
        staging.change_files(7)
    with pytest.raises(StagingError, match=r"epoch 8 .*cannot be read"):
        staging.change_files(8)


@given(manifests)
def test_a_manifest_comes_back_from_its_text(manifest: Manifest) -> None:
    assert Manifest.from_text(manifest.to_text()) == manifest


def test_each_attempt_at_a_split_has_a_file_of_its_own() -> None:
    split = PlannedSplit(Split((WHOLE_TABLE,), 5))
    again = split.reread_at("later")
    assert again == PlannedSplit(Split((WHOLE_TABLE,), 5), attempt=2, reading=Later("later"))
    assert again.reread_at("latest").attempt == 3
    assert list(Manifest((split, again)).chunks) == ["chunk-0-1.arrow", "chunk-1-2.arrow"]


def test_a_split_that_is_planned_anew_has_the_same_file_only_where_the_same_rows_are_read() -> None:
    split, less = Split((WHOLE_TABLE,), 5), Split((KeyRange(None, ("9",)),), 5)
    plans = [PlannedSplit.of(*plan) for plan in [(split, "0/1"), (split, "0/2"), (less, "0/1"), (split, "0/1")]]
    names = [next(iter(Manifest((plan,)).chunks)) for plan in plans]
    assert len(set(names)) == 3
    assert names[0] == names[3]


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_manifest_is_refused_or_was_not_damaged(data: st.DataObject) -> None:
    golden = data.draw(st.sampled_from([json.loads(manifest.to_text()) for manifest in MANIFESTS.values()]))
    value = data.draw(damaged(golden))
    try:
        manifest = Manifest.from_text(json.dumps(value))
    except StagingError:
        return
    assert json.dumps(json.loads(manifest.to_text()), sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '{"version": 1}', '{"version": null}', "[" * 100_000, "\xff"]
)
def test_what_is_no_manifest_is_refused(staging: Staging, file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    (file.parent / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StagingError, match="damaged manifest"):
        staging.manifest(7)
