"""`backfill doctor`: each finding on a real server, and that the SQL it prints mends it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from backfill.__main__ import main
from backfill.options import parse
from backfill.upstream.postgres.doctor import examine
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers.address import as_uri
from integration.versions import require_version
from integration.waiting import eventually

if TYPE_CHECKING:
    from integration.fixtures.postgres import StartPostgres

Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    def run(*arguments: str, url: str = "", dbtable: str = "t") -> tuple[int, str]:
        code = main(["doctor", "--url", url or database.url(tmp_path), "--dbtable", dbtable, *arguments])
        return code, capsys.readouterr().out

    return run


def mends(text: str) -> list[str]:
    """The statements below what is refused."""
    lines = text.splitlines()
    refused = [at for at, line in enumerate(lines) if line.startswith("refused")]
    return [lines[at + 1].strip() for at in refused if lines[at + 1].startswith("    ")]


def test_a_table_that_is_fine_is_said_to_be(database: Database, doctor: Doctor, start_stream: StartStream) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int); ALTER TABLE t REPLICA IDENTITY FULL")
    made = (
        "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() "
        "UNION ALL SELECT pubname FROM pg_publication"
    )
    code, text = doctor()
    assert code == 0
    assert "refused" not in text
    assert text.endswith("t: a stream would begin\n")
    assert "max_slot_wal_keep_size is unlimited" in text
    assert "REPLICA IDENTITY" not in text
    assert database.execute(made) == []
    start_stream().batch()


def test_options_are_looked_at_as_a_stream_does(database: Database, doctor: Doctor) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text)")
    upsert = ("--option", "envelope=upsert", "--option")
    assert doctor(*upsert, "orderColumn=n")[0] == 0
    code, text = doctor(*upsert, "orderColumn=nope")
    assert (code, "refused: orderColumn names 'nope'" in text) == (1, True)
    assert doctor("--option", "filter=n > 1")[0] == 1
    database.execute("ALTER TABLE t RENAME v TO _change_type")
    code, text = doctor()
    assert (code, text.count("refused: ")) == (1, 1)
    assert text.startswith("refused: the table's column _change_type has the name of a metadata column")
    code, text = doctor("--option", "columns=nope")
    assert (code, text.count("refused: ")) == (1, 1)


def test_what_the_database_refuses_to_tell_hides_nothing_else(database: Database, tmp_path: Path) -> None:
    """As where functions that look into the server are kept from the public."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    login = database.login()
    database.execute(f"ALTER ROLE {database.name} NOSUPERUSER; GRANT SELECT ON t TO {database.name}")
    options = {**database.options, **login, "dbtable": "t", "stateDir": str(tmp_path)}
    told = [found.what for found in examine(parse(options, streaming=True)) if found.refuses]
    assert sum("pg_control_system" in what for what in told) == 1
    assert any("may not use replication slots" in what for what in told)


def test_a_publication_is_looked_at_with_the_columns_that_are_asked_for(database: Database, doctor: Doctor) -> None:
    require_version(database, 150_000, "a publication of some columns")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text); CREATE PUBLICATION p FOR TABLE t (n, v)")
    code, text = doctor("--option", "publicationName=p", "--option", "columns=n")
    assert (code, "refused" in text) == (1, True)


def test_what_to_know_of_a_table_refuses_nothing(database: Database, doctor: Doctor) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, note text, data jsonb) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (9) TO (19)"
    )
    code, text = doctor()
    assert code == 0
    assert "large unchanged value of note, data ends the stream" in text
    assert "followed through its root" in text
    assert "between SET UNLOGGED and SET LOGGED" in text
    assert "large" not in doctor("--option", "columns=id,n")[1]
    (mend,) = [line for line in text.splitlines() if line.startswith("    ALTER TABLE")]
    first, *others = mend.split("; ")
    assert len(others) == 2
    database.execute(first)  # of the root, which changes no partition
    assert "large unchanged value of note, data ends the stream" in doctor()[1]
    database.execute("; ".join(others))
    assert "REPLICA IDENTITY FULL" not in doctor()[1]


def test_a_key_that_is_no_primary_key_is_not_advised_away(database: Database, doctor: Doctor) -> None:
    database.execute("CREATE TABLE t (id int NOT NULL, note text); CREATE UNIQUE INDEX u ON t (id)")
    database.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX u")
    code, text = doctor()
    assert code == 0
    assert "ends the stream, unless onUnchangedToast=mark or changelog=full. REPLICA IDENTITY FULL is no way" in text
    assert "ALTER TABLE" not in text
    filtered = doctor("--option", "snapshotFilter=id > 1")[1]
    assert "ends the stream, unless changelog=full. REPLICA IDENTITY FULL is no way" in filtered


def test_whole_rows_are_not_advised_where_writers_would_fail_with_them(database: Database, doctor: Doctor) -> None:
    require_version(database, 180_000, "virtual generated columns")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (id * 2) VIRTUAL)")
    given = ("--option", "columns=id,v")
    code, text = doctor(*given)
    assert code == 0
    assert "REPLICA IDENTITY FULL is no way, because virtual generated column g is never published; changelog" in text
    assert "ALTER TABLE" not in text
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    code, text = doctor(*given)
    assert (code, mends(text)) == (1, [])
    assert 'Run ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT' in text
    assert doctor(*given, "--option", "startupMode=snapshot")[0] == 0


def test_a_publication_with_which_writers_fail_is_refused(database: Database, doctor: Doctor) -> None:
    require_version(database, 150_000, "a publication of some columns")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text); CREATE PUBLICATION p FOR TABLE t (id, v)")
    given = ("--option", "columns=id,v", "--option", "publicationName=p")
    code, text = doctor(*given)
    assert (code, "FULL is no way, because publication p has a list of its columns" in text) == (0, True)
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert doctor(*given)[0] == 1


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ("", "there is no table 't'"),
        ("CREATE TABLE t (id int)", 'ALTER TABLE "public"."t" ADD PRIMARY KEY'),
        (
            "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING",
            'ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT',
        ),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", 'ALTER TABLE "public"."t" SET LOGGED'),
        ("CREATE TABLE t (what regclass, id int[], PRIMARY KEY (what, id))", "the key column 'what' is a regclass"),
        ("CREATE TABLE t (what regclass, id int[], PRIMARY KEY (what, id))", "the key column 'id' is an array"),
        (
            """CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);
               CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9); ALTER TABLE t_1 REPLICA IDENTITY NOTHING""",
            'ALTER TABLE "public"."t_1" REPLICA IDENTITY DEFAULT',
        ),
    ],
)
def test_a_table_that_would_be_refused_is_with_the_way_out(
    database: Database, doctor: Doctor, statements: str, words: str
) -> None:
    database.execute(statements or "SELECT")
    code, text = doctor()
    assert code == 1
    assert words in text
    assert text.endswith("t: a stream would be refused\n")


def test_columns_that_cannot_be_had_as_asked_are_named(database: Database, doctor: Doctor) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, price numeric, at time)")
    code, text = doctor("--option", "customSchema=price TIME, at DECIMAL(9,2)")
    assert code == 1
    assert "customSchema gives 'price' the type TIME" in text
    assert "customSchema gives 'at' the type DECIMAL(9,2)" in text


def test_rights_are_answered_with_statements_that_give_them(database: Database, doctor: Doctor, stranger: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE mine (id int PRIMARY KEY)")
    database.execute(f"ALTER TABLE mine OWNER TO {stranger}")
    become = ("--option", f"sessionInitStatement=SET ROLE {stranger}")
    code, text = doctor(*become)
    assert code == 1
    assert f'GRANT SELECT ON "public"."t" TO "{stranger}"' in text
    database.execute(f"GRANT SELECT ON t TO {stranger}")
    code, text = doctor(*become)
    statements = mends(text)
    assert statements[0] == f'ALTER ROLE "{stranger}" REPLICATION;'
    assert statements[1].startswith('CREATE PUBLICATION "backfill_public_t_feed" FOR TABLE')
    for statement in statements:
        database.execute(statement)
    code, text = doctor(*become, "--option", "publicationName=backfill_public_t_feed")
    assert (code, mends(text)) == (0, [])
    statements = mends(doctor(*become, dbtable="mine")[1])
    assert statements == [f'GRANT CREATE ON DATABASE "{database.name}" TO "{stranger}";']
    database.execute(statements[0])
    assert doctor(*become, dbtable="mine")[0] == 0


def test_a_publication_that_leaves_something_out_is_refused(database: Database, doctor: Doctor) -> None:
    require_version(database, 150_000, "a publication of some columns")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    assert "publication p does not exist" in doctor("--option", "publicationName=p")[1]
    database.execute("CREATE PUBLICATION p FOR TABLE t (id)")
    code, text = doctor("--option", "publicationName=p")
    assert code == 1
    assert "does not publish column n" in text


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
            eventually(lambda: "note: idle_replication_slot_timeout is 36h: a stream that is" in doctor(**given)[1])
            assert "or of which a batch or the interval of its trigger takes longer, is lost" in doctor(**given)[1]


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

    def said(slot: str) -> tuple[int, str]:
        return doctor("--option", f"slotName={slot}", url=as_uri(server.dsn, password=None))

    assert said("mine")[0] == 0
    for slot, words in (
        ("odd", "slot odd exists and uses test_decoding"),
        ("elsewhere", "slot elsewhere is of database other, and url names postgres"),
        ("new", "all 3 replication slots of the server are taken"),
    ):
        code, text = said(slot)
        assert (code, words in text) == (1, True)


def test_slots_of_streams_are_not_said_to_be_unused(start_postgres: StartPostgres, doctor: Doctor) -> None:
    server = start_postgres(max_replication_slots="3")
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for name in ("backfill_public_t_1f0c9a77", "backfilled", "old"):
            session.execute("SELECT pg_create_physical_replication_slot(%s)", [name])
    code, text = doctor(url=as_uri(server.dsn, password=None))
    assert code == 1
    assert "not in use at this moment: backfilled, old. Of streams: backfill_public_t_1f0c9a77; a stream reads" in text
    assert "go by whether confirmed_flush_lsn moves, and end a stream with `backfill drop`" in text


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


def test_too_little_room_for_sessions_is_said_of_the_limit_that_leaves_it(
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
    assert f'note: the CONNECTION LIMIT of the role "{role}" leaves room for 10 more sessions at this moment' in text
    assert "it takes up to 11: 3, and 2 for each of numPartitions=4 readers" in text
    assert f'    ALTER ROLE "{role}" CONNECTION LIMIT 11;' in text
    assert "CONNECTION LIMIT" not in doctor("--option", "numPartitions=3", url=url)[1]
    database.execute(f"ALTER ROLE {role} CONNECTION LIMIT 22; ALTER DATABASE {role} CONNECTION LIMIT 3")
    assert re.search(f'the CONNECTION LIMIT of the database "{role}" leaves room for [0-3] more', doctor(url=url)[1])
    database.execute(f"ALTER ROLE {role} SUPERUSER")
    assert "CONNECTION LIMIT" not in doctor(url=url)[1]
