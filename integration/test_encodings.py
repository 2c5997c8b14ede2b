"""Databases whose text is not UTF-8: one of another encoding, and one that takes any bytes for text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg import sql

from backfill.__main__ import main
from backfill.errors import TableError, ValueOutOfRangeError
from integration.copies import batch_of, sink
from integration.database import Database, drop, maintenance, new_name
from integration.fixtures.streams import StartStream
from integration.servers import Server
from integration.versions import require_version

KEYS = ["Äpfel", "Birne", "straße", "Zürich", "é", "£"]


@contextmanager
def database_of(server: Server, encoding: str, ending: str = "") -> Iterator[Database]:
    database = Database(server, new_name() + ending)
    name = sql.Identifier(database.name)
    with maintenance(server) as connection:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0 LOCALE 'C' ENCODING {}")
        connection.execute(statement.format(name, sql.Literal(encoding)))
    try:
        yield database
    finally:
        drop(database)


@pytest.fixture
def unchecked(postgres: Server) -> Iterator[Database]:
    with database_of(postgres, "SQL_ASCII") as database:
        yield database


def filled(database: Database) -> None:
    database.execute('CREATE TABLE t ("größe" text PRIMARY KEY, v text, many text[])')
    for key in KEYS:
        database.execute("INSERT INTO t VALUES (%s, %s, ARRAY[%s])", [key, key * 2, key])


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_arrives_as_it_is(postgres: Server, start_stream: StartStream, encoding: str) -> None:
    with database_of(postgres, encoding) as database:
        filled(database)
        run = start_stream(database=database, key=("größe",))
        run.judged_batch(2)
        run.judged_batch(2)
        database.execute("UPDATE t SET v = 'ö'; UPDATE t SET \"größe\" = 'ü' WHERE \"größe\" = 'é'")
        run.finish()


def test_a_database_whose_name_its_encoding_writes_otherwise_is_distinguished_from_others(
    postgres: Server, start_stream: StartStream, capsys: pytest.CaptureFixture[str]
) -> None:
    with database_of(postgres, "LATIN1", "ü") as database:
        filled(database)
        run = start_stream(database=database, key=("größe",))
        run.judged_batch(2)
        database.execute("UPDATE t SET v = 'ö'")
        run.finish()
        state = run.options["stateDir"]
        assert main(["drop", "--state-dir", state, "--url", run.options["url"]]) == 0
        assert f"dropped stream {run.barrier().stream}" in capsys.readouterr().out
        assert (
            database.execute("SELECT slot_name FROM pg_replication_slots WHERE datoid = %s", [oid_of(database)]) == []
        )


def oid_of(database: Database) -> int:
    ((oid,),) = database.execute("SELECT oid FROM pg_database WHERE datname = current_database()")
    return int(oid)


@pytest.mark.parametrize("column", ["v", "many"])
def test_bytes_that_are_no_text_are_refused_wherever_they_come_from(
    unchecked: Database, start_stream: StartStream, column: str
) -> None:
    filled(unchecked)
    spoil = {"v": r"E'caf\xe9'", "many": r"ARRAY[E'caf\xe9']"}[column]
    unchecked.execute(f"UPDATE t SET {column} = {spoil} WHERE \"größe\" = 'Birne'")
    run = start_stream(database=unchecked, key=("größe",))
    refused = "not UTF-8.*SQL_ASCII accepts any bytes.*option columns.*CREATE PUBLICATION"
    with pytest.raises(ValueOutOfRangeError, match=refused):
        run.catch_up()
    unchecked.execute(f"UPDATE t SET {column} = NULL")
    run.restart()  # The chunk is read at a later state.
    run.finish()
    unchecked.execute(f"UPDATE t SET {column} = {spoil} WHERE \"größe\" = 'Birne'")
    with pytest.raises(ValueOutOfRangeError, match=refused):
        run.catch_up()


def test_a_byte_without_a_character_is_refused_and_not_shown(postgres: Server, start_stream: StartStream) -> None:
    """WIN1252 leaves five bytes without one, and the server stores them as it gets them."""
    with database_of(postgres, "WIN1252") as database:
        filled(database)
        database.execute(r"UPDATE t SET v = convert_from('\x81', 'WIN1252')")
        run = start_stream(database=database, key=("größe",))
        with pytest.raises(ValueOutOfRangeError, match=r"byte sequence 0x… in .*option columns.*CREATE PUB"):
            run.catch_up()
        run.restart(columns='"größe", many')
        run.catch_up()


def test_text_that_is_no_text_may_be_kept_out_by_the_publication(
    unchecked: Database, start_stream: StartStream
) -> None:
    """The server converts all columns that are published, also those that nobody asked for."""
    require_version(unchecked, 150000, "a publication of some columns")
    filled(unchecked)
    run = start_stream(database=unchecked, key=("größe",), select='"größe", v', columns='"größe", v')
    run.finish()
    unchecked.execute(r"UPDATE t SET many = ARRAY[E'caf\xe9'], v = 'é'")
    with pytest.raises(ValueOutOfRangeError, match=r"CREATE PUBLICATION p FOR TABLE t .* publicationName=p"):
        run.catch_up()
    run.stop()
    unchecked.execute('CREATE PUBLICATION p FOR TABLE t ("größe", v)')
    fresh = start_stream(database=unchecked, key=("größe",), select='"größe", v')
    fresh.restart(columns='"größe", v', publicationName="p", onExistingState="restart")
    fresh.judged_batch(2)
    unchecked.execute("UPDATE t SET v = 'ö'")
    fresh.finish()


def test_a_statement_of_ones_own_does_not_change_the_encoding(database: Database, start_stream: StartStream) -> None:
    filled(database)
    run = start_stream(key=("größe",), sessionInitStatement="SET client_encoding = 'LATIN1'")
    run.judged_batch(2)
    database.execute("UPDATE t SET v = 'ö'")
    run.finish()


def test_a_character_that_the_sinks_database_does_not_have_is_reported(postgres: Server, tmp_path: Path) -> None:
    with database_of(postgres, "LATIN1") as database:
        database.execute("CREATE TABLE copy (id int PRIMARY KEY, v text)")
        apply = sink(database, tmp_path)
        apply(batch_of({"id": 1, "v": "é"}), 0)
        with pytest.raises(ValueOutOfRangeError, match="Put the table into one with the encoding UTF8"):
            apply(batch_of({"id": 1, "v": "€"}), 1)
        assert database.execute("TABLE copy") == [(1, "é")]


def test_a_name_that_the_database_cannot_have_is_no_tables(postgres: Server, start_stream: StartStream) -> None:
    with (
        database_of(postgres, "LATIN1") as database,
        pytest.raises(TableError, match="the option dbtable is '日本', which is not the name of a table"),
    ):
        start_stream("日本", database=database).batch()
