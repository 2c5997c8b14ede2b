"""Random schedules, each from one seed: writers, batches, and what befalls the query. Each returns the query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from backfill.control import Control
from backfill.options import OnExistingState, OnTruncate, StartupMode
from backfill.whole_rows.completing import Rules
from backfill_state import InMemoryProgressStore
from tests.simulator.database import Database, Key
from tests.simulator.harness import Spark, same_rows
from tests.simulator.leftover import Leftover
from tests.simulator.upstream import Server
from tests.simulator.writer import SPACE, random_rows, reveal, truncate, write

Schedule = Callable[[Random, Path], Spark]

MOST_BATCHES = 1000


def query(random: Random, folder: Path, mode: StartupMode = StartupMode.INITIAL) -> Spark:
    """Makes a query that begins on a table of up to 90 rows."""
    database = Database(initial=random_rows(random, random.choice([0, 1, 5, 40, 90])))
    server = Server(database, full_identity=random.random() < 0.5, batch_rows=random.choice([3, 30, 100]))
    return Spark(
        server,
        folder,
        vnodes=random.choice([1, 2, 3, 8, 40]),
        partitions=random.choice([1, 2, 5]),
        mode=mode,
    )


def without_a_crash(random: Random, folder: Path) -> Spark:
    """Batches of all sizes. Each is read once or twice and must be the same (I4)."""
    spark = query(random, folder)
    for _ in range(random.randrange(3, 25)):
        write_some(random, spark)
        if spark.plan(random_budget(random)):
            rows = spark.read()
            if random.random() < 0.5:
                assert same_rows(spark.read(), rows), "read again, the batch is another one"
            spark.commit(rows)
        spark.check()
    return quiet_down(spark)


def with_crashes(random: Random, folder: Path) -> Spark:
    """The driver dies at any moment, tasks outlive it, are run twice or given up; the store is busy or lost."""
    return in_bad_weather(random, query(random, folder))


def in_bad_weather(
    random: Random,
    spark: Spark,
    *,
    batches: range = range(3, 25),
    lose_store: bool = True,
    after_each: Callable[[], None] = lambda: None,
) -> Spark:
    for _ in range(random.choice(batches)):
        write_some(random, spark)
        batch_in_bad_weather(random, spark, lose_store=lose_store)
        spark.check()
        after_each()
    return quiet_down(spark)


def with_new_checkpoints(random: Random, folder: Path) -> Spark:
    """Now and then the checkpoint is lost, and the query goes on from the state directory or starts over."""
    spark = query(random, folder)

    def after_each() -> None:
        if random.random() < 0.1:
            spark.begin_anew(random.choice([OnExistingState.RESUME, OnExistingState.RESTART]))

    return in_bad_weather(random, spark, lose_store=False, after_each=after_each)


def with_truncations(random: Random, folder: Path) -> Spark:
    """`onTruncate=emit`, in bad weather."""
    spark = query(random, folder)
    spark.on_truncate = OnTruncate.EMIT
    spark.server.batch_rows = random.choice([1, 2, 100])
    return in_bad_weather(random, spark)


def with_full_images(random: Random, folder: Path) -> Spark:
    """`changelog=full` or `envelope=upsert` in bad weather, with a log that leaves out what it can."""
    spark = query(random, folder)
    spark.rules = _rules(random)
    if spark.rules.skips_equal and random.random() < 0.5:
        # This column is the same for all rows of a key, so none of them comes late.
        spark.rules = replace(spark.rules, order_column="a")
    spark.server.leaves_out = True
    spark.server.full_identity = random.random() < 0.2
    spark.on_truncate = random.choice([OnTruncate.FAIL, OnTruncate.EMIT])

    def after_each() -> None:
        if random.random() < 0.05:
            spark.begin_anew(OnExistingState.RESTART)

    return in_bad_weather(random, spark, after_each=after_each)


def with_pauses(random: Random, folder: Path) -> Spark:
    """Somebody pauses, throttles and resumes the stream, in bad weather."""
    spark = query(random, folder)
    for _ in range(random.randrange(5, 25)):
        write_some(random, spark)
        if random.random() < 0.5:
            spark.control = Control(paused=random.random() < 0.4, max_rows=random.choice([None, None, 0, 1, 5]))
        before = _rows_read(spark)
        batch_in_bad_weather(random, spark, lose_store=False)
        spark.check()
        read = _rows_read(spark) - before
        assert read <= spark.control.rows_of(MANY), f"{read} rows were read: {spark.control}"
        if spark.control.holds:
            _require_rest(spark)
    spark.control = Control()
    return quiet_down(spark)


MANY = 1 << 40


def _rows_read(spark: Spark) -> int:
    return spark.barrier().progress.row_count if spark.committed else 0


def _require_rest(spark: Spark) -> None:
    """Requires that batches end and no state is pinned while the snapshot is held and nobody writes."""
    spark.store_is_busy = False
    for _ in range(MOST_BATCHES):
        if not spark.batch():
            break
        spark.check()
    assert not spark.plan(), "there is a batch although nothing has happened"
    assert not spark.server.pins


def of_changes_only(random: Random, folder: Path) -> Spark:
    """`startupMode=latest`: changes to a table that the sink has already."""
    return in_bad_weather(random, query(random, folder, StartupMode.LATEST), batches=range(5, 20))


def of_a_snapshot_only(random: Random, folder: Path) -> Spark:
    """`startupMode=snapshot`: one batch of one state, whatever happens meanwhile."""
    spark = query(random, folder, StartupMode.SNAPSHOT)
    for _ in range(random.randrange(3)):
        write_some(random, spark)
    while not spark.committed:
        batch_in_bad_weather(random, spark)
    spark.check()
    write_some(random, spark)
    assert not spark.plan(), "there is nothing to read after the snapshot"
    return spark


def taken_again(random: Random, folder: Path) -> Spark:
    """Somebody has rows read again, before, during and after the backfill, in bad weather; sometimes stops it."""
    spark = query(random, folder, random.choice([StartupMode.INITIAL] * 3 + [StartupMode.LATEST]))
    spark.on_truncate = random.choice([OnTruncate.FAIL] * 4 + [OnTruncate.EMIT])
    if spark.mode is StartupMode.INITIAL and random.random() < 0.3:
        spark.rules = _rules(random)
        spark.server.leaves_out = True
    often = random.choice([0.1, 0.5])
    for _ in range(random.randrange(10, 40)):
        write_some(random, spark)
        if spark.offsets and random.random() < often:
            if random.random() < 0.1:
                spark.ask_to_stop()
            else:
                spark.ask_again(_any_key(random), _any_key(random))
        if random.random() < 0.1:
            spark.control = replace(spark.control, paused=random.random() < 0.5, max_rows=random.choice([None, 0, 2]))
        batch_in_bad_weather(random, spark, lose_store=False)
        spark.check()
        if spark.mode is StartupMode.INITIAL and random.random() < 0.03:
            # The last rows of keys cannot be taken back to the epoch of the state directory: no resuming with them.
            ways = [OnExistingState.RESTART] + [OnExistingState.RESUME] * (spark.rules is None)
            spark.begin_anew(random.choice(ways))
    spark.control = replace(spark.control, paused=False, max_rows=None)
    quiet_down(spark)
    assert not spark.asked, "something was asked for and not done"
    return spark


def _rules(random: Random) -> Rules:
    """Makes rules at random, some of which read fewer bytes at once than a row has."""
    return Rules(skips_equal=random.random() < 0.5, most_bytes=random.choice([1, 100, 1 << 20]))


def _any_key(random: Random) -> Key | None:
    return random.choice([None, (random.randrange(SPACE), random.randrange(SPACE))])


def write_some(random: Random, spark: Spark) -> None:
    for _ in range(random.choice([0, 0, 1, 3])):
        write(random, spark.database)
        # A truncation waits for whoever reads the table at a pinned state.
        if spark.on_truncate is OnTruncate.EMIT and random.random() < 0.2 and not spark.server.pins:
            truncate(random, spark.database)
    reveal(random, spark.database)


def random_budget(random: Random) -> int | None:
    return random.choice([1, 3, 10, None])


def batch_in_bad_weather(random: Random, spark: Spark, *, lose_store: bool = True) -> None:
    """Runs one batch, if there is one, with as many processes as it takes."""
    # Somebody looks into the state file for a moment, for which a process that starts would wait.
    spark.store_is_busy = spark.running and random.random() < 0.2
    spark.server.losses = random.choice([0, 0, 0, 0, 1, 3])
    if random.random() < 0.1:
        spark.plan(random_budget(random), logged=False)
        spark.crash()
        write_some(random, spark)
    if not spark.plan(random_budget(random)):
        return
    leftover = Leftover()
    while random.random() < 0.3:
        _lose_the_process(random, spark, leftover, lose_store=lose_store)
    rows = spark.read(lambda: leftover.go_on(random))
    if random.random() < 0.3:
        # Spark's commit log does not have the batch yet, whether or not the sink has.
        _lose_the_process(random, spark, leftover, lose_store=lose_store)
        assert same_rows(spark.read(lambda: leftover.go_on(random)), rows), "run again, the batch is another one"
    # For a snapshot alone, the chunks of a driver that is gone count only if all of them came to their ends.
    if spark.mode is not StartupMode.SNAPSHOT:
        assert leftover.passed_on <= set(rows), "the sink of a driver that is gone has other rows of the batch"
    spark.commit(rows)
    if random.random() < 0.2:
        spark.crash()
        spark.partitions = random.choice([1, 2, 5])


def _lose_the_process(random: Random, spark: Spark, leftover: Leftover, *, lose_store: bool) -> None:
    """Ends the driver, most often with tasks under way, while others go on writing."""
    if random.random() < 0.7:
        leftover.begin(random, spark)
    spark.crash()
    spark.partitions = random.choice([1, 2, 5])
    if lose_store and random.random() < 0.1:
        spark.store = InMemoryProgressStore()
    write_some(random, spark)


def quiet_down(spark: Spark) -> Spark:
    """Reveals all commits, and lets the stream read until nothing is left; returns the query."""
    spark.store_is_busy = False
    for entry in spark.database.hidden:
        spark.database.reveal(entry)
    for _ in range(MOST_BATCHES):
        if not spark.batch(50):
            break
        spark.check()
    assert not spark.committed or spark.backfilled
    assert spark.sink.rows == spark.database.latest()
    return spark
