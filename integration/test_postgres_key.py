"""Which columns of a table are its key, and the words that mend a table without a fitting one."""

from __future__ import annotations

import pytest

from backfill.upstream.postgres.tables.catalog import read_table
from integration.database import Database
from integration.described import Session, described, key_of, refusal
from integration.versions import require_before, require_version


def test_a_table_without_a_key_is_refused_with_the_ways_to_one(session: Session) -> None:
    message = refusal(session, "CREATE TABLE t (id int)")
    assert 'ALTER TABLE "public"."t" ADD PRIMARY KEY' in message
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX' in message


UNIQUE = 'CREATE TABLE t (id int, code text NOT NULL); CREATE UNIQUE INDEX "By code" ON t (code);'


def test_the_error_for_a_table_with_a_fitting_unique_index_names_it(session: Session) -> None:
    message = refusal(session, f"{UNIQUE} CREATE UNIQUE INDEX other ON t (id)")
    statement = 'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "By code"'
    assert statement in message
    assert "other" not in message
    assert key_of(described(session, statement)) == ["code"]


def test_the_identity_index_is_the_key_even_beside_a_primary_key(session: Session) -> None:
    statements = f'{UNIQUE} ALTER TABLE t ADD PRIMARY KEY (id); ALTER TABLE t REPLICA IDENTITY USING INDEX "By code"'
    assert key_of(described(session, statements)) == ["code"]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_the_primary_key_is_the_key(session: Session, identity: str) -> None:
    table = described(
        session, f"{UNIQUE} ALTER TABLE t ADD PRIMARY KEY (id) INCLUDE (code), REPLICA IDENTITY {identity}"
    )
    assert key_of(table) == ["id"]
    assert table.replica_identity == identity[0].lower()


def test_full_identity_without_a_primary_key_is_refused(session: Session) -> None:
    assert "no primary key" in refusal(session, f"{UNIQUE} ALTER TABLE t REPLICA IDENTITY FULL")


def test_no_identity_is_refused(session: Session) -> None:
    message = refusal(session, "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING")
    assert 'Run ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT' in message


def test_an_identity_whose_index_is_gone_is_refused(session: Session) -> None:
    statements = f'{UNIQUE} ALTER TABLE t REPLICA IDENTITY USING INDEX "By code"; DROP INDEX "By code"'
    assert "has been dropped" in refusal(session, statements)
    session.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    assert key_of(read_table(session, "t", follows=False)) == ["id"], "the identity is of no use without a log"


def test_a_deferrable_key_is_refused(session: Session) -> None:
    message = refusal(session, "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, n int NOT NULL UNIQUE)")
    assert "deferrable" in message
    assert 'USING INDEX "t_n_key"' in message
    statement = 'ALTER TABLE "public"."t" DROP CONSTRAINT "t_pkey", ADD PRIMARY KEY ("id")'
    assert f"; or {statement}" in message
    assert key_of(described(session, statement)) == ["id"]


def test_a_key_without_overlaps_is_refused(session: Session, database: Database) -> None:
    require_version(database, 180_000, "a temporal key")
    statements = """
        CREATE EXTENSION btree_gist;
        CREATE TABLE t (id int, during tstzrange, PRIMARY KEY (id, during WITHOUT OVERLAPS))
    """
    message = refusal(session, statements)
    assert "access method gist" in message
    assert "PRIMARY KEY" not in message, "a table takes no second one, and this one is not to be given up"


@pytest.mark.parametrize(
    ("statements", "name"),
    [
        ('CREATE TABLE t (id int, r int NOT NULL); ALTER TABLE t ADD CONSTRAINT "No null" NOT NULL id NOT VALID', "t"),
        (
            """CREATE TABLE t (id int, r int NOT NULL) PARTITION BY LIST (r);
               CREATE TABLE leaf (r int NOT NULL, id int);
               ALTER TABLE t ATTACH PARTITION leaf DEFAULT; ALTER TABLE leaf REPLICA IDENTITY FULL;
               ALTER TABLE leaf ADD CONSTRAINT "No null" NOT NULL id NOT VALID; ALTER TABLE t ALTER id SET NOT NULL""",
            "leaf",
        ),
    ],
    ids=["table", "partition"],
)
def test_a_key_that_older_rows_may_lack_is_refused(
    session: Session, database: Database, statements: str, name: str
) -> None:
    require_version(database, 180_000, "a NOT NULL that is not valid")
    if name == "t":
        require_before(database, 190_000, "such a replica identity")
    identity = "CREATE UNIQUE INDEX i ON t (r, id); ALTER TABLE t REPLICA IDENTITY USING INDEX i"
    message = refusal(session, f"{statements}; {identity}")
    mend = f'ALTER TABLE "public"."{name}" VALIDATE CONSTRAINT "No null"'
    assert "key column 'id'" in message
    assert message.endswith(mend)
    assert key_of(described(session, mend)) == ["r", "id"]


def test_a_generated_key_needs_a_server_that_logs_it(session: Session, database: Database) -> None:
    statements = "CREATE TABLE t (id int, twice int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY)"
    if database.server.version >= 180000:
        assert key_of(described(session, statements)) == ["twice"]
    else:
        assert "'twice' is generated" in refusal(session, statements)
        assert key_of(read_table(session, "t", follows=False)) == ["twice"], "no log is needed"


def test_the_key_takes_order_and_collation_of_its_index(session: Session) -> None:
    table = described(
        session,
        """
        CREATE TABLE t (a text COLLATE "en_US.utf8" NOT NULL, b text NOT NULL, c int NOT NULL);
        CREATE UNIQUE INDEX i ON t (a COLLATE "C" NULLS FIRST, b text_pattern_ops, c DESC);
        ALTER TABLE t REPLICA IDENTITY USING INDEX i
        """,
    )
    a, b, c = table.key
    assert a.collation is not None
    assert a.column.collation is not None
    assert (a.collation.name.name, a.column.collation.name.name) == ("C", "en_US.utf8")
    assert [operator.name for operator in b.operators] == ["~<~", "~<=~", "=", "~>=~", "~>~"]
    assert (a.default_order, b.default_order, c.default_order) == (True, False, True)
    assert (a.nulls_first, b.nulls_first, c.nulls_first) == (True, False, False)
