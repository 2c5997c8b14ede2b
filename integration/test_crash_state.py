"""A checkpoint and a state directory that do not belong together, and what crashes leave behind in either."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.errors import StateError
from integration.crash.killing import Strike
from integration.crash.lives import SMALL, Lives
from integration.crash.oracle import require_history, rows_of
from integration.crash.sink import Row, Sink
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun
from integration.writers import BIGINT, TABLE

SIZE = 300
MANY = 10_000


def create(database: Database) -> None:
    BIGINT.create(database, SIZE, identity="FULL")


def write(database: Database, number: int) -> None:
    database.execute(
        f"UPDATE {TABLE} SET note = 'changed {number}' WHERE id % 5 = {number} % 5;"
        f"UPDATE {TABLE} SET id = -id - 100000 WHERE id % 23 = {number} AND id > 0;"
        f"DELETE FROM {TABLE} WHERE id % 29 = {number};"
        f"INSERT INTO {TABLE} (note, balance, id) SELECT 'new', 0, min(id) - 1 FROM {TABLE}"
    )


def slots(database: Database) -> list[str]:
    rows = database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    return [str(row[0]) for row in rows]


def files(folder: Path) -> list[str]:
    """All files below a folder, hidden ones as well."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def resumed(run: StreamRun) -> StreamRun:
    """A new query on the state directory of a stopped one, with the same sink."""
    run.stop()
    other = run.new_checkpoint()
    other.restart(onExistingState="resume")
    other.fold = run.fold
    return other


def require_both(history: list[tuple[int, list[Row]]], database: Database, sink: Sink) -> None:
    """Requires that two queries, one after the other, gave one sink all rows once."""
    fold = require_history(history, sink.key)
    assert fold.rows == rows_of(database, TABLE, BIGINT.select, sink.key)


# -- a new checkpoint on an old state directory ----------------------------------------------------------------------


def test_a_new_checkpoint_on_a_used_state_directory_is_refused_with_both_ways_out(
    database: Database, start_stream: StartStream
) -> None:
    create(database)
    run = start_stream(TABLE, select=BIGINT.select)
    run.catch_up()
    run.stop()
    other = run.new_checkpoint()
    with pytest.raises(StateError, match=r"onExistingState=resume.*onExistingState=restart"):
        other.batch()
    other.stop()
    run.finish()


@pytest.mark.parametrize("batches", [2, 100])
def test_a_new_checkpoint_that_resumes_gets_nothing_twice_and_lacks_nothing(
    database: Database, start_stream: StartStream, batches: int
) -> None:
    create(database)
    run = start_stream(TABLE, select=BIGINT.select, vnodeCount="3", maxBytesPerTrigger="1500")
    for number in range(min(batches, 20)):
        write(database, number)
        run.batch(MANY)
    run.ask(MANY)  # by this Spark says that the last batch has been committed
    for number in range(3):
        run = resumed(run)
        write(database, 20 + number)
        run.batch(MANY)
        run.batch(MANY)
        run.ask(MANY)
    run.finish()


def test_a_new_checkpoint_that_resumes_may_be_killed_as_often_as_any(database: Database, tmp_path: Path) -> None:
    create(database)
    first = Lives(database, tmp_path / "first", BIGINT, vnodeCount="3", numPartitions="2", maxBytesPerTrigger="1000")
    first.die_at(Strike("state written", nth=3, action="group"), max_rows=MANY)
    second = Lives(database, tmp_path / "second", BIGINT)
    second.options = {**first.options, "onExistingState": "resume"}
    second.sink.go_on_from(first.sink)
    committed = first.checkpoint.commits.last()
    for step in ("offset about to be logged", "offset logged", "chunk staged", "sink written", "state written"):
        write(database, len(step))
        second.die_at(Strike(step, action="group"), max_rows=MANY)
    second.live()
    both = [*first.sink.batches(), *((committed + 1 + number, rows) for number, rows in second.sink.batches())]
    require_both(both, database, first.sink)


def test_a_new_checkpoint_that_starts_over_reads_everything_again_and_removes_what_was(
    database: Database, start_stream: StartStream, tmp_path: Path
) -> None:
    create(database)
    run = start_stream(TABLE, select=BIGINT.select, vnodeCount="3", maxBytesPerTrigger="3000", numPartitions="1")
    run.batch(MANY)
    run.batch(MANY)
    (old,) = slots(database)
    write(database, 1)
    run.stop()
    other = run.new_checkpoint()
    other.restart(onExistingState="restart")
    other.batch(MANY)
    assert old not in slots(database)
    assert [path.name for path in (tmp_path / "state" / "staging").iterdir()] == [other.barrier().stream]
    other.restart(maxBytesPerTrigger="1g")
    other.finish()
    assert slots(database) == [other.slot]


@pytest.mark.parametrize("step", ["stream named", "publication made", "slot made", "offset about to be logged"])
def test_starting_over_may_be_cut_off_at_any_step(database: Database, tmp_path: Path, step: str) -> None:
    create(database)
    first = Lives(database, tmp_path / "first", BIGINT, vnodeCount="3", numPartitions="2")
    first.live()
    second = Lives(database, tmp_path / "second", BIGINT)
    second.options = {**first.options, "onExistingState": "restart"}
    for number in range(2):
        write(database, number)
        second.die_at(Strike(step, action="group"))
    second.finish()
    assert slots(database) == [second.slot]


# -- an old checkpoint on a new state directory ----------------------------------------------------------------------


@pytest.mark.parametrize("step", ["commit logged", "offset logged", "partitions made", "chunk staged", "sink written"])
def test_a_checkpoint_goes_on_without_its_state_directory(database: Database, tmp_path: Path, step: str) -> None:
    """The staged chunks are elsewhere, because a batch that reached the sink may need them once more."""
    create(database)
    lives = Lives(database, tmp_path, BIGINT, vnodeCount="3", numPartitions="2", maxBytesPerTrigger="3000")
    lives.options["stagingDir"] = str(tmp_path / "staging")
    for number in range(3):
        lives.die_at(Strike(step, nth=2, action="group"), max_rows=MANY)
        write(database, number)
        lives.options["stateDir"] = str(tmp_path / f"state {number}")
    lives.finish()


def test_a_batch_that_no_reader_began_goes_on_without_its_staged_chunks(database: Database, tmp_path: Path) -> None:
    create(database)
    lives = Lives(database, tmp_path, BIGINT, vnodeCount="3", numPartitions="2", maxBytesPerTrigger="3000")
    for number in range(3):
        lives.die_at(Strike("offset logged", nth=2, action="group"), max_rows=MANY)
        write(database, number)
        lives.options["stateDir"] = str(tmp_path / f"state {number}")
    lives.finish()


def test_an_older_checkpoint_is_refused_by_its_state_directory(database: Database, start_stream: StartStream) -> None:
    create(database)
    run = start_stream(TABLE, select=BIGINT.select, vnodeCount="3", maxBytesPerTrigger="3000")
    for number in range(4):
        write(database, number)
        run.batch(MANY)
    run.stop()
    run.offsets, run.committed = run.offsets[:2], 2
    with pytest.raises(StateError, match="an older checkpoint was restored"):
        run.batch(MANY)


def test_a_state_directory_of_another_stream_is_refused(database: Database, start_stream: StartStream) -> None:
    create(database)
    database.execute("CREATE TABLE other (id bigint PRIMARY KEY)")
    run = start_stream(TABLE, select=BIGINT.select)
    other = start_stream("other", stateDir=str(run.folder / "other"))
    run.batch()
    other.batch()
    other.restart(stateDir=run.options["stateDir"])
    with pytest.raises(StateError, match="give each stream its own stateDir"):
        other.batch()
    run.finish()


# -- staged chunks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "with blanks, ümläuts & 100%"])
@pytest.mark.parametrize("how", ["path", "uri"])
def test_crashes_leave_no_staged_files_behind(database: Database, tmp_path: Path, name: str, how: str) -> None:
    create(database)
    folder = tmp_path / name
    lives = Lives(
        database,
        tmp_path / "stream",
        BIGINT,
        settings={**SMALL, "backfill.packing:INLINE_BYTES": 200},
        vnodeCount="3",
        numPartitions="3",
        maxBytesPerTrigger="3000",
        stagingDir=folder.as_uri() if how == "uri" else str(folder),
    )
    steps = ("in the middle of a chunk", "chunk about to be staged", "chunk staged", "manifest about to appear")
    for number, step in enumerate((*steps, "sink written", "changes about to be staged")):
        write(database, number)
        lives.die_at(Strike(step, nth=2 if step in steps else 1, action="group"), max_rows=MANY)
    assert files(folder)
    lives.finish()
    lives.settings["backfill.state_dir.record:FOLLOW_INTERVAL"] = 0
    write(database, 20)
    lives.finish()
    left = {Path(file).parts[1] for file in files(folder)}
    epoch = lives.checkpoint.commits.last() + 1
    assert left <= {str(epoch)}, f"files of epochs {left} are left, and the stream is at {epoch}"
