"""`backfill doctor`: what it finds in the server's settings, its slots and its room for sessions."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from integration.database import Database
from integration.fixtures.doctor import Doctor, mends
from integration.scenarios import KEEPS_LITTLE, invalidate
from integration.servers.address import as_uri
from integration.versions import require_version
from integration.waiting import eventually

if TYPE_CHECKING:
    from integration.fixtures.postgres import StartPostgres
    from integration.fixtures.streams import StartStream


def test_a_server_that_cannot_be_reached_is_a_finding(doctor: Doctor) -> None:
    code, text = doctor(url="postgresql://nobody@127.0.0.1:1/none")
    assert code == 1
    assert "refused: no connection to the database" in text


def test_the_servers_settings_and_slots(start_postgres: StartPostgres, doctor: Doctor) -> None:
    server = start_postgres(wal_level="replica", max_replication_slots="1", max_slot_wal_keep_size="1GB")
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        session.execute("SELECT pg_create_physical_replication_slot('old')")
    url = as_uri(server.dsn, password=None)
    code, text = doctor(url=url)
    assert code == 1
    unfit = "wal_level is replica, expected logical; run ALTER SYSTEM SET wal_level = 'logical'" in text
    assert unfit == (server.version < 190_000)
    assert "all 1 replication slots of the server are taken; not in use at this moment: old" in text
    assert mends(text) == ["ALTER SYSTEM SET max_replication_slots = 2;"]
    assert "max_slot_wal_keep_size" not in text
    assert doctor("--option", "startupMode=snapshot", url=url)[0] == 0


def test_a_server_that_invalidates_idle_slots_is_noted(start_postgres: StartPostgres, doctor: Doctor) -> None:
    server = start_postgres()
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        given = {"url": as_uri(server.dsn, password=None)}
        assert "idle_replication_slot_timeout" not in doctor(**given)[1]
        if server.version >= 180_000:
            session.execute("ALTER SYSTEM SET idle_replication_slot_timeout = '36h'")
            session.execute("SELECT pg_reload_conf()")
            eventually(lambda: "idle_replication_slot_timeout is 36h: if the stream is stopped" in doctor(**given)[1])
            assert "or a batch or the trigger's interval takes longer, the slot is invalidated" in doctor(**given)[1]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("-1", "note: max_slot_wal_keep_size is unlimited: while the stream is stopped"),
        (
            "0",
            "note: max_slot_wal_keep_size is 0: once the server has written that much log while the stream is stopped",
        ),
        ("64MB", "note: max_slot_wal_keep_size is 64MB: once the server has written that much log while the stream is"),
    ],
)
def test_a_server_that_keeps_all_of_the_log_or_little_of_it_is_noted(
    start_postgres: StartPostgres, doctor: Doctor, limit: str, words: str
) -> None:
    server = start_postgres(max_slot_wal_keep_size=limit)
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
    code, text = doctor(url=as_uri(server.dsn, password=None))
    assert (code, words in text) == (0, True)
    assert "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();" in text


def test_what_a_server_keeps_of_the_log_without_slots_is_kept_for_a_slot_too(
    start_postgres: StartPostgres, doctor: Doctor
) -> None:
    server = start_postgres(max_slot_wal_keep_size="64MB", wal_keep_size="128MB")
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        given = {"url": as_uri(server.dsn, password=None)}
        assert "max_slot_wal_keep_size is 64MB, and wal_keep_size 128MB: once the server" in doctor(**given)[1]
        session.execute("ALTER SYSTEM SET wal_keep_size = '2GB'")
        session.execute("SELECT pg_reload_conf()")
        eventually(lambda: "max_slot_wal_keep_size" not in doctor(**given)[1])


def test_a_slot_that_somebody_made_is_looked_at_and_needs_no_other(
    start_postgres: StartPostgres, doctor: Doctor
) -> None:
    server = start_postgres(max_replication_slots="3")
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        session.execute("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
        session.execute("SELECT pg_create_logical_replication_slot('odd', 'test_decoding')")
        session.execute("CREATE DATABASE other")
    with psycopg.connect(server.dsn, dbname="other", autocommit=True) as session:
        session.execute("SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')")

    def doctor_of(slot: str) -> tuple[int, str]:
        return doctor("--option", f"slotName={slot}", url=as_uri(server.dsn, password=None))

    assert doctor_of("mine")[0] == 0
    for slot, words in (
        ("odd", "slot odd exists and uses test_decoding"),
        ("elsewhere", "slot elsewhere belongs to database other, and url names database postgres"),
        ("new", "all 3 replication slots of the server are taken"),
    ):
        code, text = doctor_of(slot)
        assert (code, words in text) == (1, True)


def test_slots_of_streams_are_not_reported_as_unused(start_postgres: StartPostgres, doctor: Doctor) -> None:
    server = start_postgres(max_replication_slots="3")
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for name in ("backfill_public_t_1f0c9a77", "backfilled", "old"):
            session.execute("SELECT pg_create_physical_replication_slot(%s)", [name])
    code, text = doctor(url=as_uri(server.dsn, password=None))
    assert code == 1
    assert "not in use at this moment: backfilled, old. Of streams: backfill_public_t_1f0c9a77; a stream uses" in text
    assert "look whether confirmed_flush_lsn moves, and end a stream with `backfill drop`" in text


def test_slots_of_streams_of_the_table_are_named_with_the_log_they_keep(
    database: Database, doctor: Doctor, start_stream: StartStream
) -> None:
    """Nothing else tells of a slot whose `stateDir` was lost before a batch was logged."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE t_other (id int PRIMARY KEY)")
    assert "streams of" not in doctor()[1]
    run = start_stream()
    run.batch()
    other = start_stream("t_other", stateDir=f"{run.options['stateDir']}_other")
    other.batch()
    code, text = doctor()
    assert code == 0
    assert re.search(rf'streams of "public"."t" have made replication slots.*: {run.slot} \(\d+ \w+\)\. If', text)
    run.stop()
    for name in (run.slot, other.slot):
        database.execute("SELECT pg_drop_replication_slot(%s)", [name])
    assert "streams of" not in doctor()[1]


def test_slots_that_were_invalidated_are_those_to_drop(start_postgres: StartPostgres, doctor: Doctor) -> None:
    server = start_postgres(max_replication_slots="2", **KEEPS_LITTLE)
    database = Database(server, "postgres")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("SELECT pg_create_logical_replication_slot('backfill_public_t_1f0c9a77', 'pgoutput')")
    invalidate(database)
    database.execute("SELECT pg_create_physical_replication_slot('old')")
    code, text = doctor(url=as_uri(server.dsn, password=None))
    lost = "invalidated, and of no use to anybody: backfill_public_t_1f0c9a77; not in use at this moment: old. Drop one"
    assert (code, f"all 2 replication slots of the server are taken; {lost}" in text) == (1, True)


def test_an_invalidated_slot_of_a_standby_is_not_reported_as_useless(
    start_postgres: StartPostgres, doctor: Doctor
) -> None:
    """Up to PostgreSQL 17 a standby goes on with such a slot, once it has got what is missing from an archive."""
    server = start_postgres(max_replication_slots="1", **KEEPS_LITTLE)
    database = Database(server, "postgres")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    invalidate(database)
    code, text = doctor(url=as_uri(server.dsn, password=None))
    assert (code, "slots of the server are taken; not in use at this moment: standby. Drop one" in text) == (1, True)


def test_the_slot_of_a_table_that_is_repacked_takes_no_place_of_a_streams(
    start_postgres: StartPostgres, doctor: Doctor
) -> None:
    server = start_postgres(max_replication_slots="1")
    database = Database(server, "postgres")
    require_version(database, 190_000, "REPACK (CONCURRENTLY)")
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")

    def repack() -> None:
        with database.connect(autocommit=True) as session:
            session.execute("REPACK (CONCURRENTLY) other")

    with ThreadPoolExecutor() as threads, database.connect() as reader:
        reader.execute("SELECT FROM other")
        repacking = threads.submit(repack)
        eventually(
            lambda: database.execute("SELECT slot_name FROM pg_replication_slots WHERE plugin = 'pgrepack'") != []
        )
        code, text = doctor(url=as_uri(server.dsn, password=None))
        assert not repacking.done()
        reader.rollback()
        repacking.result()
    assert code == 0
    assert "replication slots" not in text


def test_on_amazon_rds_a_role_stands_for_the_right_to_use_slots(start_postgres: StartPostgres, doctor: Doctor) -> None:
    server = start_postgres()
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("CREATE ROLE rds_replication; CREATE ROLE app; CREATE TABLE t (id int PRIMARY KEY)")
        session.execute("ALTER TABLE t OWNER TO app; GRANT CREATE ON DATABASE postgres TO app")
        given = {"url": as_uri(server.dsn, password=None)}
        become = ("--option", "sessionInitStatement=SET ROLE app")
        code, text = doctor(*become, **given)
        assert (code, mends(text)) == (1, ['GRANT rds_replication TO "app";'])
        session.execute("GRANT rds_replication TO app")
    assert doctor(*become, **given)[0] == 0


def test_too_little_room_for_sessions_is_reported_with_the_limit_that_leaves_it(
    database: Database, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    role = database.name
    monkeypatch.setenv("PGPASSWORD", "narrow")
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION CONNECTION LIMIT 10 PASSWORD 'narrow'; ALTER TABLE t OWNER TO {role}"
    )
    database.execute(f"GRANT CREATE ON DATABASE {role} TO {role}")
    url = as_uri(database.dsn, user=role, password=None)
    code, text = doctor(url=url)
    assert code == 0
    assert f'note: the CONNECTION LIMIT of the role "{role}" leaves room for 10 more sessions now' in text
    assert "a stream takes up to 11 while it reads its table: 3, and 2 for each of numPartitions=4 readers" in text
    assert f'    ALTER ROLE "{role}" CONNECTION LIMIT 11;' in text
    assert "CONNECTION LIMIT" not in doctor("--option", "numPartitions=3", url=url)[1]
    database.execute(f"ALTER ROLE {role} CONNECTION LIMIT 22; ALTER DATABASE {role} CONNECTION LIMIT 3")
    assert re.search(f'the CONNECTION LIMIT of the database "{role}" leaves room for [0-3] more', doctor(url=url)[1])
    database.execute(f"ALTER ROLE {role} SUPERUSER")
    assert "CONNECTION LIMIT" not in doctor(url=url)[1]
