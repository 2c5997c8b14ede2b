"""Streams that stop at any moment and go on, and the tables, modes and servers they go on with."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from operator import attrgetter

import pytest

from backfill.errors import SnapshotGoneError, StateError, TableError, TransientError
from backfill.handoff import SnapshotPart
from backfill.plan import MIN_SPLIT_ROWS
from backfill.progress import Finished
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import StreamRun, table_of

# -- the driver stops ------------------------------------------------------------------------------------------------


def churn(database: Database, number: int) -> None:
    """Changes all over the table, different ones each time."""
    database.execute(
        f"UPDATE t SET v = 'round {number}' WHERE id % 7 = {number % 7}; DELETE FROM t WHERE id % 31 = {number % 31};"
        f"INSERT INTO t SELECT i, 'new' FROM generate_series({number}, 400, 37) i ON CONFLICT (id) DO NOTHING;"
        f"UPDATE t SET id = id + 1000000 WHERE id % 61 = {number % 61} "
        "AND NOT EXISTS (SELECT FROM t o WHERE o.id = t.id + 1000000)"
    )


def planned_and_forgotten(run: StreamRun) -> None:
    run.ask(40)


def planned(run: StreamRun) -> None:
    run.plan(40)


def partly_handed_out(run: StreamRun) -> None:
    run.plan(40)
    run.parts()


def read_and_not_committed(run: StreamRun) -> None:
    run.plan(40)
    run.read()


def committed(run: StreamRun) -> None:
    run.batch(40)


STOPS = [planned_and_forgotten, planned, partly_handed_out, read_and_not_committed, committed]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.__name__.replace("_", " "))
def test_a_driver_that_stops_at_this_point_of_every_batch_loses_nothing(
    database: Database, start_stream: StartStream, stop: Callable[[StreamRun], None]
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5", numPartitions="2")
    for number in range(12):
        stop(run)
        run.restart()
        churn(database, number)
        if number % 3:
            run.batch(40)
    run.finish()


def test_a_batch_that_was_read_gives_the_same_rows_again(database: Database, start_stream: StartStream) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5", numPartitions="2")
    number = 0
    while run.plan(50):
        number += 1
        rows = run.read()
        if number < 12:
            churn(database, number)
        run.restart(numPartitions=str(1 + number % 3))
        assert run.read() == rows
        run.commit(rows)
    run.finish()


def test_a_chunk_that_was_not_read_before_the_stop_is_read_at_a_later_state(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 3 * MIN_SPLIT_ROWS)
    run = start_stream(vnodeCount="6", numPartitions="3")
    run.plan(10_000_000)
    parts = run.parts()
    assert len(parts) == 3
    run.read_part(parts[1])
    run.restart()
    churn(database, 1)
    rows = run.read()
    churn(database, 2)
    run.restart()
    assert run.read() == rows
    run.commit(rows)
    run.finish()


def test_another_number_of_vnodes_is_for_new_streams(database: Database, start_stream: StartStream) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    run.ask(40)
    run.restart(vnodeCount="9")
    run.batch(40)
    assert run.barrier().progress.vnode_count == 9
    run.restart(vnodeCount="3", numPartitions="1")
    churn(database, 1)
    run.backfill(40)
    assert run.barrier().progress.vnode_count == 9
    run.finish()


def test_a_table_of_one_row(database: Database, start_stream: StartStream) -> None:
    table_of(database, 1)
    run = start_stream()
    run.judged_batch(1)
    run.restart()
    database.execute("UPDATE t SET id = 0; INSERT INTO t VALUES (2, 'two')")
    run.finish()
    assert run.fold.counts == {"insert": 3, "delete": 1}


def test_available_now_stops_at_what_was_there_when_it_began(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream()
    for round_ in range(3):
        database.execute(f"UPDATE t SET v = 'before {round_}' WHERE id <= 10")
        run.stream().stop_at_present()
        batches = 0
        while run.batch(30):
            batches += 1
            assert batches < 50
            database.execute(f"UPDATE t SET v = 'during {round_} {batches}' WHERE id > 10")
        values = {row["v"] for key, row in run.fold.rows.items() if key <= (10,)}
        assert values == {f"before {round_}"}
        run.restart()
    assert run.backfilled
    run.finish()


# -- the state directory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [40, 400], ids=["in the middle of the backfill", "after it"])
def test_a_lost_state_directory_is_made_again_from_the_checkpoint(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    run.judged_batch(rows)
    churn(database, 1)
    run.judged_batch(rows)
    run.plan(rows)
    run.stop()
    shutil.rmtree(run.options["stateDir"])
    churn(database, 2)
    run.batch(rows)
    run.restart()
    run.finish()


def test_the_state_directory_of_another_stream_is_refused(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    run, other = start_stream(), start_stream("u", stateDir="")
    own = run.options["stateDir"]
    other.options = {**other.options, "stateDir": f"{own}-other"}
    run.batch(30)
    other.catch_up()
    other.stop()
    run.restart(stateDir=f"{own}-other")
    with pytest.raises(StateError, match=r'stateDir to stream \w+ \(table "public"\."u"\)'):
        run.batch(30)
    run.restart(stateDir=own)
    run.finish()


def test_a_new_checkpoint_on_a_used_state_directory_asks_what_is_meant(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream()
    run.batch(30)
    run.batch(30)
    run.stop()
    new = run.new_checkpoint()
    with pytest.raises(StateError, match=r"onExistingState=resume.*onExistingState=restart"):
        new.batch(30)
    new.restart(onExistingState="restart")
    new.finish()
    assert new.fold.counts == {"insert": 100}


@pytest.mark.parametrize("rows", [30, 400], ids=["in the middle of the backfill", "after it"])
def test_a_new_checkpoint_resumes_where_the_state_directory_stands(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    """Also where the old query had planned and read a batch more, of which the sink has nothing."""
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    run.batch(rows)
    churn(database, 1)
    run.batch(rows)
    before = dict(run.fold.rows)
    run.plan(rows)
    run.read()
    run.stop()
    churn(database, 2)
    new = run.new_checkpoint()
    new.restart(onExistingState="resume")
    new.fold.rows = before
    new.batch(rows)
    new.restart()
    new.batch(rows)
    new.finish()


def test_a_stream_that_never_came_to_a_barrier_can_be_started_over(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream()
    run.ask(30)
    run.stop()
    database.execute("DROP TABLE t")
    table_of(database, 50)
    with pytest.raises(StateError, match=r"made again.*onExistingState=restart"):
        run.ask(30)
    run.restart(onExistingState="restart")
    run.finish()
    assert run.fold.counts == {"insert": 50}


# -- tables ----------------------------------------------------------------------------------------------------------

PARTITIONED = """
    CREATE TABLE t (region text, id int, v text, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
    CREATE TABLE t_north PARTITION OF t FOR VALUES IN ('north');
    CREATE TABLE t_south PARTITION OF t FOR VALUES IN ('south') PARTITION BY RANGE (id);
    CREATE TABLE t_south_1 PARTITION OF t_south FOR VALUES FROM (0) TO (50);
    CREATE TABLE t_south_2 PARTITION OF t_south FOR VALUES FROM (50) TO (1000);
    CREATE TABLE t_rest PARTITION OF t DEFAULT;
    INSERT INTO t SELECT (ARRAY['north', 'south', 'east'])[i % 3 + 1], i, 'v' FROM generate_series(1, 200) i;
    ANALYZE t
"""


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_partitioned_table_is_one_table(database: Database, start_stream: StartStream, identity: str) -> None:
    database.execute(PARTITIONED)
    for leaf in ("t_north", "t_south_1", "t_south_2", "t_rest"):
        database.execute(f"ALTER TABLE {leaf} REPLICA IDENTITY {identity}")
    run = start_stream(key=("region", "id"), vnodeCount="5", numPartitions="2")
    number = 0
    while not number or not run.backfilled:
        number += 1
        run.judged_batch(30)
        database.execute(
            f"UPDATE t SET v = 'round {number}' WHERE id % 5 = {number % 5};"
            f"UPDATE t SET region = 'south' WHERE region = 'north' AND id % 7 = {number % 7};"
            f"UPDATE t SET id = id + 300 WHERE region = 'south' AND id BETWEEN {10 * number} AND {10 * number + 3};"
            f"DELETE FROM t WHERE id = {number}; INSERT INTO t_north VALUES ('north', {700 + number}, 'new')"
        )
    database.execute("CREATE TABLE t_west PARTITION OF t FOR VALUES IN ('west')")
    database.execute(f"ALTER TABLE t_west REPLICA IDENTITY {identity}")
    run.restart()
    database.execute("INSERT INTO t VALUES ('west', 1, 'v'), ('west', 2, 'v'); UPDATE t SET v = 'w' WHERE id = 1")
    run.finish()


def test_one_partition_may_be_streamed_by_itself(database: Database, start_stream: StartStream) -> None:
    database.execute(PARTITIONED)
    run = start_stream("t_south_1", key=("region", "id"))
    run.judged_batch(5)
    database.execute("UPDATE t SET v = 'new'; UPDATE t SET region = 'north' WHERE id = 4; DELETE FROM t WHERE id = 7")
    run.backfill(5)
    run.finish()


def test_the_parent_of_other_tables_is_refused_and_its_children_are_not(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 50)
    database.execute("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t)")
    database.execute("INSERT INTO child SELECT i, 'child' FROM generate_series(1, 20) i")
    with pytest.raises(TableError, match="inheritance children"):
        start_stream().batch()
    run = start_stream("child", stateDir=f"{start_stream().options['stateDir']}-child")
    run.judged_batch(5)
    database.execute("UPDATE t SET v = 'both'; DELETE FROM t WHERE id < 3")
    run.finish()


def test_a_table_that_gets_a_child_keeps_its_own_rows_only(database: Database, start_stream: StartStream) -> None:
    table_of(database, 50)
    run = start_stream()
    run.judged_batch(20)
    database.execute("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t); INSERT INTO child VALUES (1, 'child')")
    database.execute("UPDATE t SET v = 'both' WHERE id = 1; INSERT INTO child VALUES (1000, 'child')")
    run.catch_up(20)
    assert sorted(run.fold.rows) == [(n,) for n in range(1, 51)]
    assert run.fold.rows[(1,)]["v"] == "both"


ODD = ['"Select"', '"a b"', '"ü"', '"it\'s"', '"say ""hi"""', '"100%"', '"%s"', '"{}"', '"a,b"', '"user"', '"x;y"']


def test_names_may_be_anything_that_can_be_quoted(database: Database, start_stream: StartStream) -> None:
    database.execute('CREATE SCHEMA "My Schema"')
    columns = ", ".join(f"{name} text" for name in ODD[2:])
    table = '"My Schema"."Ta""ble %"'
    database.execute(f"CREATE TABLE {table} ({ODD[0]} int, {columns}, {ODD[1]} int, PRIMARY KEY ({ODD[1]}, {ODD[0]}))")
    database.execute(
        f"INSERT INTO {table} ({ODD[0]}, {ODD[1]}, {ODD[2]}) SELECT i, i % 3, 'v' FROM generate_series(1, 60) i"
    )
    run = start_stream(table, key=("a b", "Select"), vnodeCount="4", numPartitions="2")
    run.judged_batch(20)
    for name in ODD[2:]:
        database.execute(f"UPDATE {table} SET {name} = 'new' WHERE {ODD[0]} % 2 = 0")
        run.judged_batch(10)
    database.execute(f"UPDATE {table} SET {ODD[0]} = {ODD[0]} + 100 WHERE {ODD[1]} = 1")
    run.finish()


# -- startup modes ---------------------------------------------------------------------------------------------------


def test_startup_mode_latest_begins_with_what_happens_next(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream(startupMode="latest")
    assert run.batch()
    assert not run.batch()
    database.execute("INSERT INTO t VALUES (101, 'new'); UPDATE t SET v = 'newer' WHERE id = 101")
    run.catch_up()
    run.restart()
    database.execute("DELETE FROM t WHERE id = 101; INSERT INTO t VALUES (102, 'new')")
    run.catch_up()
    assert run.fold.counts == {"insert": 2, "update_postimage": 1, "delete": 1}
    assert isinstance(run.barrier().progress, Finished)


def test_startup_mode_snapshot_is_one_batch_of_one_state(database: Database, start_stream: StartStream) -> None:
    table_of(database, 2 * MIN_SPLIT_ROWS)
    run = start_stream(startupMode="snapshot", numPartitions="2", vnodeCount="4")
    run.plan(10)
    judge = run.judge()
    churn(database, 1)
    parts = run.parts()
    assert len(parts) == 2
    rows = run.read_part(parts[0])
    churn(database, 2)
    run.commit(rows + run.read_part(parts[1]))
    judge()
    assert not run.batch()
    run.restart()
    assert not run.batch()
    assert database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


def test_a_snapshot_that_was_read_in_part_is_read_again_as_a_whole(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 2 * MIN_SPLIT_ROWS)
    run = start_stream(startupMode="snapshot", numPartitions="2", vnodeCount="4")
    run.plan()
    run.read_part(run.parts()[0])
    run.restart()
    churn(database, 1)
    run.batch()
    run.require_equal()


# -- connections and servers -----------------------------------------------------------------------------------------


def terminate(database: Database, which: str) -> int:
    """Ends sessions of the stream, waits until they have gone, and returns how many there were."""
    query = (
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
        f"WHERE application_name = 'backfill' AND datname = current_database() AND {which}"
    )
    ((count,),) = database.execute(query)
    return int(count)


EXPORTER = "state = 'idle in transaction'"
OTHERS = f"NOT {EXPORTER}"
EVERY = "true"


@pytest.mark.parametrize("rows", [30, 400], ids=["in the middle of the backfill", "after it"])
def test_connections_cut_between_batches_are_made_anew(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    for number in range(8):
        run.judged_batch(rows)
        assert terminate(database, EVERY) > 0
        churn(database, number)
    run.finish()


class Terminating:
    """In place of a method of the upstream, or of a part of it: the same, after its session has been ended."""

    def __init__(self, run: StreamRun, name: str, which: str) -> None:
        self._database, self._which = run.database, which
        path, _, method = name.rpartition(".")
        owner = attrgetter(path)(run.upstream) if path else run.upstream
        self._method = getattr(owner, method)
        self.ended = 0
        setattr(owner, method, self)

    def __call__(self, *arguments: object, **named: object) -> object:
        if not self.ended:
            self.ended = terminate(self._database, self._which)
        return self._method(*arguments, **named)


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("measure", EXPORTER),
        ("_epochs.log.read", EVERY),
        ("acknowledge", EVERY),
        ("bounds", EVERY),
        ("covered", OTHERS),
    ],
    ids=["while vnodes are measured", "before the log is read", "before the slot moves", "at the start", "marking"],
)
def test_connections_cut_during_planning_are_made_anew(
    database: Database, start_stream: StartStream, name: str, which: str
) -> None:
    database.execute('CREATE TABLE t (id text COLLATE "en_US.utf8" PRIMARY KEY, v text)')
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 300) i; ANALYZE t")
    run = start_stream(vnodeCount="5")
    if name != "bounds":
        run.judged_batch(30)
    terminating = Terminating(run, name, which)
    database.execute("UPDATE t SET v = 'new'")
    run.judged_batch(1000)
    run.backfill(1000)
    run.finish()
    assert terminating.ended > 0


def test_a_reader_cut_in_the_middle_of_its_chunk_goes_on_behind_the_last_row(
    database: Database, start_stream: StartStream
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE PLAIN")
    database.execute("INSERT INTO t SELECT i, repeat('x', 7000) FROM generate_series(1, 8000) i; ANALYZE t")
    run = start_stream(vnodeCount="2", numPartitions="1")
    run.plan(10_000)
    (part,) = run.parts()
    assert isinstance(part, SnapshotPart)
    assert part.token is not None
    ended, found = 0, []
    # Not through the part, which reads ahead: the server would be done before the first rows are here.
    for batch in run.upstream.reader().read(part.token, part.split.ranges):
        found += batch.column("id").to_pylist()
        if ended < 2:
            ended += terminate(database, "query LIKE 'COPY%' AND pid <> pg_backend_pid()")
    assert ended == 2
    assert found == list(range(1, 8001))


def test_a_reader_whose_state_is_gone_says_so_and_a_new_driver_reads_on(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    run.batch(30)
    run.plan(30)
    parts = run.parts()
    terminate(database, EXPORTER)
    with pytest.raises(SnapshotGoneError):
        run.read_part(parts[-1])
    churn(database, 1)
    run.restart()
    run.batch(30)
    run.finish()


@pytest.fixture
def own_database(start_postgres: Callable[..., LocalServer]) -> tuple[LocalServer, Database]:
    server = start_postgres()
    return server, Database(server, "postgres")


ENDS: dict[str, Callable[[LocalServer], None]] = {
    "shut down": lambda server: server.stop("fast"),
    "shut down without a checkpoint": lambda server: server.stop("immediate"),
    "killed": LocalServer.kill,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_server_that_goes_and_comes_back_is_waited_for(
    own_database: tuple[LocalServer, Database], start_stream: StartStream, end: str
) -> None:
    server, database = own_database
    table_of(database, 300)
    run = start_stream(database=database, vnodeCount="5")
    for number, rows in enumerate((40, 40, 400, 400)):
        run.judged_batch(rows)
        churn(database, number)
        ENDS[end](server)
        coming = threading.Timer(0.3, server.start)
        coming.start()
        run.judged_batch(rows)
        coming.join()
    run.finish()


def test_a_server_that_goes_while_chunks_are_read_costs_no_row(
    own_database: tuple[LocalServer, Database], start_stream: StartStream
) -> None:
    server, database = own_database
    table_of(database, 3 * MIN_SPLIT_ROWS)
    run = start_stream(database=database, vnodeCount="6", numPartitions="3")
    run.plan(10_000_000)
    parts = run.parts()
    run.read_part(parts[0])
    server.kill()
    server.start()
    with pytest.raises(TransientError):
        run.read_part(parts[1])
    run.restart()
    churn(database, 1)
    run.batch()
    run.finish()


def test_a_server_that_stays_away_ends_the_stream_with_its_reason(
    own_database: tuple[LocalServer, Database], start_stream: StartStream
) -> None:
    server, database = own_database
    table_of(database, 10)
    run = start_stream(database=database)
    run.catch_up()
    server.stop()
    run.give_up_after(0.2)
    with pytest.raises(TransientError, match="connection"):
        run.batch()
    server.start()
    run.finish()
