"""The driver is killed at every step that has a name, two or three times in a row at each; nothing is different.

Writes of every kind happen while it is dead. What the sink holds at the end, and all that it ever got, is right; the
slot is never beyond what was committed; a batch that was read twice had the same rows twice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.command.requests import ask_again
from backfill.offset import Barrier
from integration.crash.killing import LAST_ROWS_STEPS, SINK_STEPS, STEPS, Strike
from integration.crash.lives import PATIENCE, SMALL, Lives
from integration.database import Database
from integration.writers import BIGINT, TABLE

SIZE = 300
MANY = 10_000

IN_THE_FIRST_BATCH = (
    "stream named",
    "publication about to be made",
    "publication made",
    "slot made",
    "bounds kept",
)
BY_READERS = ("chunk about to be read", "in the middle of a chunk", "chunk about to be staged", "chunk staged")


def a_stream(database: Database, folder: Path, **options: str) -> Lives:
    """A stream of some thirty rows a batch, read by several readers."""
    BIGINT.create(database, SIZE, identity="DEFAULT" if "changelog" in options else "FULL")
    options = {"vnodeCount": "3", "numPartitions": "3", "maxBytesPerTrigger": "3000", **options}
    settings = {**SMALL, "backfill.packing:INLINE_BYTES": 200}
    return Lives(database, folder, BIGINT, settings=settings, **options)


def write(database: Database, number: int) -> None:
    """Writes of every kind over the whole table, which leave the sum of the balances as it was."""
    last = f"(SELECT max(id) FROM {TABLE})"
    database.execute(
        f"""
        UPDATE {TABLE} SET balance = balance + 1 WHERE id % 2 = {number} % 2;
        UPDATE {TABLE} SET balance = balance - (SELECT count(*) FROM {TABLE} WHERE id % 2 = {number} % 2)
            WHERE id = {last};
        UPDATE {TABLE} SET id = -id - 100000 * {number} WHERE id % 17 = {number} AND id <> {last};
        INSERT INTO {TABLE} (note, balance, id)
            SELECT 'new', 0, -10000 - {number} + 7 * i FROM generate_series(1, 900, 90) i ON CONFLICT DO NOTHING;
        DELETE FROM {TABLE} WHERE balance = 0 AND id % 3 = 0;
        """
    )


@pytest.mark.parametrize("step", IN_THE_FIRST_BATCH)
def test_the_driver_dies_while_it_makes_the_stream(database: Database, tmp_path: Path, step: str) -> None:
    lives = a_stream(database, tmp_path)
    for number in range(2):
        lives.die_at(Strike(step, action="group"))
        write(database, number)
    lives.finish()
    lives.require_constant_sum()
    ((slots,),) = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    assert slots == 1


def die_in_mid_backfill(lives: Lives, step: str, *, times: int) -> None:
    """Kills the driver at this step again and again, after some writes each time; at the end the sink is exact."""
    lives.die_at(Strike("commit logged", action="group"), max_rows=MANY)
    for number in range(times):
        write(lives.database, number)
        if step == "pinned again":
            lives.die_at(Strike("offset logged", action="group"), max_rows=MANY)
            write(lives.database, 10 + number)
        lives.die_at(Strike(step, action="group"), max_rows=MANY)
    write(lives.database, times)
    lives.finish()
    lives.require_constant_sum()


@pytest.mark.parametrize("step", [step for step in (*STEPS, *SINK_STEPS) if step not in IN_THE_FIRST_BATCH])
def test_the_driver_dies_in_mid_backfill(database: Database, tmp_path: Path, step: str) -> None:
    die_in_mid_backfill(a_stream(database, tmp_path), step, times=2)


@pytest.mark.parametrize(
    "step",
    [
        *LAST_ROWS_STEPS,
        *("offset logged", "pinned again", "changes about to be staged", "changes staged", "partitions made"),
        *("chunk staged", "sink written", "state about to be written", "files forgotten"),
    ],
)
def test_the_driver_dies_while_it_keeps_the_last_rows(database: Database, tmp_path: Path, step: str) -> None:
    """Updates and deletes have the whole row before them all the same, once each."""
    die_in_mid_backfill(a_stream(database, tmp_path, changelog="full"), step, times=3)


def test_the_driver_dies_while_rows_are_taken_again(database: Database, tmp_path: Path) -> None:
    """It dies at one step after the other; no chunk is ever read later than its batch, so nothing is pinned again."""
    lives = a_stream(database, tmp_path)
    lives.sink = replace(lives.sink, supersedes=True)
    lives.live(max_rows=MANY)
    asked: list[str] = []
    steps = [step for step in (*STEPS, *SINK_STEPS) if step not in (*IN_THE_FIRST_BATCH, "pinned again")]
    for number, step in enumerate(steps):
        write(database, 1 + number)
        barrier = lives.checkpoint.committed()
        assert isinstance(barrier, Barrier)
        # All but one of the chunks left of a request may have been staged; then the second is of the next request.
        if not asked or (barrier.again is not None and asked[-1].startswith(f"request {barrier.again.request}:")):
            asked.append(ask_again(Path(lives.options["stateDir"]), None, None))
        lives.die_at(Strike(step, nth=1 if step.startswith("changes") else 2, action="group"), max_rows=MANY)
    write(database, 1 + len(steps))
    lives.finish()
    lives.require_constant_sum()
    last = lives.checkpoint.committed()
    assert isinstance(last, Barrier)
    assert last.again is not None
    assert asked[-1].startswith(f"request {last.again.request}:")
    assert last.again.frontier is None
    again = [row for _, rows in lives.sink.batches() for row in rows if row["_is_snapshot"]]
    assert len(again) > len(asked) * SIZE // 2


@pytest.mark.parametrize("step", BY_READERS)
def test_readers_die_and_others_read_in_their_place(database: Database, tmp_path: Path, step: str) -> None:
    lives = a_stream(database, tmp_path)
    lives.start(*(Strike(step, nth, "process") for nth in (1, 2, 3)), until_idle=True, max_rows=MANY)
    assert lives.wait(PATIENCE) == 0, lives.end_of_output()
    assert len(lives.reached) == 3
    lives.finish()


@pytest.mark.parametrize("step", ["sink about to be written", "sink written"])
def test_a_batch_that_was_read_to_its_end_has_the_same_rows_again(
    database: Database, tmp_path: Path, step: str
) -> None:
    lives = a_stream(database, tmp_path)
    for number in range(4):
        lives.die_at(Strike(step, nth=2, action="group"), max_rows=MANY)
        write(database, number)
    assert lives.sink.require_equal_attempts() >= 3
    lives.finish()


def test_a_chunk_that_was_lost_is_read_later_and_its_keys_changes_come_once(database: Database, tmp_path: Path) -> None:
    lives = a_stream(database, tmp_path)
    lives.die_at(Strike("commit logged", action="group"), max_rows=MANY)
    lives.die_at(Strike("partitions made", action="group"), max_rows=MANY)
    for number in range(3):
        write(database, number)
        # Of three chunks one more is staged in each life, so that each of them is read at another state.
        lives.die_at(Strike("chunk staged", action="group"), max_rows=MANY)
    write(database, 3)
    lives.finish()
    lives.require_constant_sum()
