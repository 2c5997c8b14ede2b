"""`backfill doctor`: what it finds in a table, its key, its publication and the role's rights."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.options import parse
from backfill.upstream.postgres.doctor import examine
from integration.database import Database
from integration.fixtures.doctor import Doctor, mends
from integration.fixtures.streams import StartStream
from integration.versions import require_version


def test_a_table_that_is_fine_is_reported_as_such(
    database: Database, doctor: Doctor, start_stream: StartStream
) -> None:
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
    assert text.startswith('refused: column _change_type of "public"."t" has the name of a metadata column')
    code, text = doctor("--option", "columns=nope")
    assert (code, text.count("refused: ")) == (1, 1)


def test_what_the_database_refuses_to_tell_hides_nothing_else(database: Database, tmp_path: Path) -> None:
    """For example, functions that look into the server may be withheld from the public."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    login = database.login()
    database.execute(f"ALTER ROLE {database.name} NOSUPERUSER; GRANT SELECT ON t TO {database.name}")
    options = {**database.options, **login, "dbtable": "t", "stateDir": str(tmp_path)}
    refusals = [found.what for found in examine(parse(options, streaming=True)) if found.refuses]
    assert sum("pg_control_system" in what for what in refusals) == 1
    assert any("may not use replication slots" in what for what in refusals)


def test_a_table_that_somebody_has_locked_is_not_waited_for(database: Database, doctor: Doctor) -> None:
    """Comparing values of an extension's type needs rights of its own; to check them the server opens the table."""
    database.execute("CREATE EXTENSION citext; CREATE TABLE t (k citext PRIMARY KEY)")
    with database.connect() as other:
        other.execute("LOCK TABLE t")
        code, text = doctor()
    assert (code, text.count("refused: ")) == (1, 1)
    assert "another session holds a lock" in text


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
    assert (
        "ends the stream, unless onUnchangedToast=mark or changelog=full. REPLICA IDENTITY FULL is not possible" in text
    )
    assert "ALTER TABLE" not in text
    filtered = doctor("--option", "snapshotFilter=id > 1")[1]
    assert "ends the stream, unless changelog=full. REPLICA IDENTITY FULL is not possible" in filtered


def test_whole_rows_are_not_advised_where_writers_would_fail_with_them(database: Database, doctor: Doctor) -> None:
    require_version(database, 180_000, "virtual generated columns")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (id * 2) VIRTUAL)")
    given = ("--option", "columns=id,v")
    code, text = doctor(*given)
    assert code == 0
    assert (
        "REPLICA IDENTITY FULL is not possible, because virtual generated column g is never published; changelog"
        in text
    )
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
    assert (code, "FULL is not possible, because publication p has a list of its columns" in text) == (0, True)
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
