"""State directories and checkpoints that do not belong together, or are lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from backfill.errors import OptionsError, SchemaChangedError, StagingError, StateError, TableError
from backfill.state_dir.files import STATE_FILE
from backfill.upstream.postgres.adapter import PostgresUpstream
from backfill_state import DuckDBProgressStore
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import churn, table_of
from tests.lost_power import Disk


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


@pytest.mark.parametrize("options", [{}, {"changelog": "full"}], ids=["as the log tells", "completed"])
def test_a_batch_that_a_sink_has_comes_again_as_it_was_after_a_loss_of_power(
    database: Database,
    start_stream: StartStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
) -> None:
    table_of(database, 300)
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder, monkeypatch)
    run = start_stream(vnodeCount="5", stagingDir=str(folder / "staging"), **options)
    run.batch(40)
    churn(database, 1)
    run.plan(150)
    rows = run.read()
    assert {row["_is_snapshot"] for row in rows} == {False, True}
    run.stop()
    disk.lose_power()
    churn(database, 2)
    assert run.read() == rows
    run.commit(rows)
    run.finish()


def test_a_stream_that_can_stage_nothing_leaves_no_slot(
    database: Database, start_stream: StartStream, tmp_path: Path
) -> None:
    """A slot would keep the server's log for nobody."""
    table_of(database, 3)
    (tmp_path / "file").touch()
    run = start_stream(stagingDir=str(tmp_path / "file" / "staging"))
    with pytest.raises(StagingError):
        run.plan()
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert database.execute(slots) == []


@pytest.mark.parametrize("rows", [40, 400], ids=["in the middle of the backfill", "after it"])
@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced by another's"])
def test_a_state_directory_that_goes_while_the_stream_runs_ends_it_with_what_to_do(
    database: Database, start_stream: StartStream, tmp_path: Path, rows: int, *, replaced: bool
) -> None:
    table_of(database, 300)
    database.execute("CREATE TABLE u (id bigint PRIMARY KEY)")
    other = start_stream(dbtable="u", stateDir=str(tmp_path / "other"))
    other.batch(10)
    other.stop()
    run = start_stream(vnodeCount="5")
    run.batch(rows)
    shutil.rmtree(run.options["stateDir"])
    if replaced:
        shutil.copytree(tmp_path / "other", run.options["stateDir"])
    churn(database, 1)
    with pytest.raises(StateError, match="was removed or replaced while the query ran"):
        run.finish()
    run.stop()
    shutil.rmtree(run.options["stateDir"])
    run.restart()
    run.finish()


def rows_recorded(state: Path) -> int:
    with DuckDBProgressStore(state) as store:
        return sum(row["row_count"] for row in store.progress().to_pylist())


def test_an_older_copy_of_the_state_that_is_put_back_while_the_stream_runs_is_brought_up_to_date(
    database: Database, start_stream: StartStream, tmp_path: Path
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="50")
    run.batch(40)
    run.batch(40)
    state = Path(run.options["stateDir"]) / STATE_FILE
    shutil.copy(state, tmp_path / "older")
    run.batch(40)
    run.batch(40)
    before = rows_recorded(state)
    shutil.copy(tmp_path / "older", state)
    run.batch(40)
    assert rows_recorded(state) > before
    run.finish()


@pytest.mark.parametrize("rows", [30, 400], ids=["in the middle of the backfill", "after it"])
def test_the_checkpoint_alone_knows_its_table(database: Database, start_stream: StartStream, rows: int) -> None:
    table_of(database, 100)
    database.execute("CREATE TABLE u (LIKE t INCLUDING ALL); CREATE PUBLICATION everything FOR ALL TABLES")
    run = start_stream(publicationName="everything")
    run.batch(rows)
    run.stop()
    shutil.rmtree(run.options["stateDir"])
    run.restart(dbtable="u")
    with pytest.raises(
        TableError, match=r"the stream began with the table with OID \d+, and \"public\"\.\"u\" has OID"
    ):
        run.catch_up()
    run.restart(dbtable="t")
    run.finish()


def test_a_lost_state_directory_is_not_made_for_a_key_that_is_refused(
    database: Database, start_stream: StartStream
) -> None:
    """Otherwise it would say that the key began with the type that it must not have."""
    table_of(database, 100)
    run = start_stream(vnodeCount="4")
    run.batch(30)
    run.stop()
    shutil.rmtree(run.options["stateDir"])
    database.execute("ALTER TABLE t ALTER id TYPE numeric(9, 0)")
    with pytest.raises(SchemaChangedError, match="another type"):
        run.catch_up()
    run.stop()
    database.execute("ALTER TABLE t ALTER id TYPE bigint")
    run.finish()


@pytest.mark.parametrize("lost", [False, True], ids=["with its state directory", "alone"])
def test_a_checkpoint_of_a_delta_table_is_refused(database: Database, start_stream: StartStream, *, lost: bool) -> None:
    table_of(database, 10)
    run = start_stream()
    run.batch()
    run.stop()
    if lost:
        shutil.rmtree(run.options["stateDir"])
    run.offsets = [json.dumps({**json.loads(run.offsets[0]), "upstream": {"stream": "s", "table_id": "d"}})]
    with pytest.raises(OptionsError, match="the checkpoint belongs to another kind of source"):
        run.batch()


def test_last_rows_are_not_kept_without_those_of_a_chunk_that_is_not_known_any_more(
    database: Database, start_stream: StartStream
) -> None:
    """The state file and what was staged are lost, and the last rows are not."""
    table_of(database, 100)
    run = start_stream(vnodeCount="1", changelog="full")
    run.batch(30)
    run.stop()
    state = Path(run.options["stateDir"])
    (state / "backfill.duckdb").unlink()
    shutil.rmtree(state / "staging")
    database.execute("UPDATE t SET v = 'new' WHERE id = 5; DELETE FROM t WHERE id = 6")
    with pytest.raises(StagingError, match="does not have the files of the batch up to epoch 1"):
        run.batch(30)


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
    """Also where the old query had planned and read one more batch, of which the sink has nothing."""
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


@pytest.mark.parametrize(("first", "left"), [("", []), ("theirs", [("theirs",)])], ids=["its own", "of the options"])
def test_a_slot_that_a_first_start_left_goes_where_it_is_its_own_and_the_options_name_another(
    database: Database, start_stream: StartStream, monkeypatch: pytest.MonkeyPatch, first: str, left: list[tuple[str]]
) -> None:
    """A slot that the options named stays: the start may have failed because it is that of another stream."""
    table_of(database, 100)
    run = start_stream(slotName=first)
    with monkeypatch.context() as patched:
        patched.setattr(PostgresUpstream, "bounds", failing)
        with pytest.raises(TableError, match="no bounds"):
            run.ask(30)
    run.restart(slotName="named")
    run.finish()
    slots = database.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE slot_name <> 'named' AND database = current_database()"
    )
    assert slots == left


def failing(*_: object) -> NoReturn:
    raise TableError("no bounds")


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
