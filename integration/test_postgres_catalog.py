"""What the catalog says of a table, and which tables are refused, with the words that mend it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from backfill.errors import TableError
from backfill.upstream.postgres.description import Generated, QualifiedName, TableDescription
from backfill.upstream.postgres.session.server import read_server
from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.selection import select_columns
from backfill.upstream.postgres.tables.size import read_size
from integration.database import Database, Row
from integration.versions import require_before, require_version

Session = psycopg.Connection[Row]


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.connect(autocommit=True) as session:
        yield session


def described(session: Session, statements: str, dbtable: str = "t") -> TableDescription:
    session.execute(statements.encode())
    return read_table(session, dbtable)


def refusal(session: Session, statements: str, dbtable: str = "t") -> str:
    with pytest.raises(TableError) as caught:
        described(session, statements, dbtable)
    return caught.value.message


def key_of(table: TableDescription) -> list[str]:
    return [key.column.name for key in table.key]


def test_a_table_is_described_column_by_column(session: Session) -> None:
    table = described(
        session,
        """
        CREATE DOMAIN price AS numeric(12,2);
        CREATE TABLE t (gone int, "A b" varchar(10), p price NOT NULL, l price[], id int8, PRIMARY KEY (id, "A b"));
        ALTER TABLE t DROP COLUMN gone;
        """,
    )
    assert table.name == QualifiedName("public", "t")
    assert [(column.name, column.attnum) for column in table.columns] == [("A b", 2), ("p", 3), ("l", 4), ("id", 5)]
    assert [column.declared for column in table.columns] == ["character varying(10)", "price", "price[]", "bigint"]
    assert [column.not_null for column in table.columns] == [True, True, False, True]
    price, prices = table.columns[1], table.columns[2]
    assert price.type.name == QualifiedName("pg_catalog", "numeric")
    assert price.type_oid not in (0, price.type.oid)
    assert prices.type.element == price.type
    assert key_of(table) == ["id", "A b"]
    assert not table.partitioned


@pytest.mark.parametrize("dbtable", ["t", "T", "public.t", ' public . "t" ', '"public"."t"'])
def test_a_table_is_found_by_the_rules_of_sql(session: Session, dbtable: str) -> None:
    assert described(session, "CREATE TABLE t (id int PRIMARY KEY)", dbtable).name.name == "t"


def test_a_table_is_found_by_its_quoted_name_and_by_its_database(session: Session, database: Database) -> None:
    session.execute('CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."T.x" (id int PRIMARY KEY)')
    assert read_table(session, '"My Schema"."T.x"').name == QualifiedName("My Schema", "T.x")
    assert read_table(session, f'{database.name}."My Schema"."T.x"').name.name == "T.x"


def test_the_search_path_of_the_session_holds(session: Session) -> None:
    session.execute("CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY)")
    session.execute("SET search_path = app, public")
    assert read_table(session, "t").name.schema == "app"
    session.execute("SET search_path = ''")
    assert "did you mean" in refusal(session, "").lower()


@pytest.mark.parametrize("dbtable", ["", "(SELECT 1) t", "t; DROP TABLE t", 'public."t', "a b"])
def test_what_is_no_name_is_refused(session: Session, dbtable: str) -> None:
    assert "not the name of a table" in refusal(session, "", dbtable)


def test_another_database_is_refused(session: Session, database: Database) -> None:
    assert f"leads to the database {database.name!r}" in refusal(session, "", "other.public.t")


@pytest.mark.parametrize(
    ("dbtable", "meant"),
    [
        ("ordres", '"public"."Orders"'),
        ("orders", '"public"."Orders"'),
        ("publik.customers", '"app"."customers"'),
    ],
)
def test_a_table_that_is_not_there_is_answered_with_the_one_that_was_meant(
    session: Session, dbtable: str, meant: str
) -> None:
    statements = 'CREATE SCHEMA app; CREATE TABLE "Orders" (id int); CREATE TABLE app.customers (id int)'
    assert f"Did you mean {meant}?" in refusal(session, statements, dbtable)


def test_nothing_is_suggested_where_nothing_is_like_it(session: Session) -> None:
    assert refusal(session, "CREATE TABLE zebra (id int)", "orders").endswith("a stream goes on under its new name")


@pytest.mark.parametrize(
    ("statements", "dbtable", "words"),
    [
        ("CREATE VIEW t AS SELECT 1 AS id", "t", "is a view"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "t", "is a materialized view"),
        ("CREATE SEQUENCE t", "t", "is a sequence"),
        ("CREATE TABLE t (id int PRIMARY KEY)", "t_pkey", "is an index"),
        ("CREATE TYPE t AS (id int)", "t", "is a composite type"),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "t", 'ALTER TABLE "public"."t" SET LOGGED'),
        ("CREATE TEMPORARY TABLE t (id int PRIMARY KEY)", "t", "temporary"),
        ("", "pg_class", "system catalogs"),
        ("", "information_schema.sql_features", "system catalogs"),
        (
            """CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
               CREATE FOREIGN TABLE t (id int) SERVER s""",
            "t",
            "is a foreign table",
        ),
        ("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE child () INHERITS (t)", "t", "inheritance children"),
    ],
)
def test_what_has_no_change_log_is_refused_by_what_it_is(
    session: Session, statements: str, dbtable: str, words: str
) -> None:
    assert words in refusal(session, statements, dbtable)


@pytest.fixture
def stranger(session: Session, database: Database) -> Iterator[str]:
    """A role without any rights, which `session` may become."""
    role = f'{database.name} "stranger"'
    quoted = sql.Identifier(role)
    session.execute(sql.SQL("CREATE ROLE {}").format(quoted))
    yield role
    session.execute("RESET ROLE")
    session.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(quoted))


def become(session: Session, role: str) -> str:
    session.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    return sql.Identifier(role).as_string(None)


def test_missing_rights_are_answered_with_the_grants(session: Session, stranger: str) -> None:
    session.execute("CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY)")
    role = become(session, stranger)
    message = refusal(session, "", "app.t")
    grants = message.partition("Run ")[2].split("; ")
    assert grants == [f'GRANT USAGE ON SCHEMA "app" TO {role}', f'GRANT SELECT ON "app"."t" TO {role}']
    session.execute("RESET ROLE")
    for grant in grants:
        session.execute(grant.encode())
    become(session, stranger)
    assert read_table(session, "app.t").role == stranger


def test_columns_that_may_not_be_read_can_be_left_out(session: Session, stranger: str) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, name text, secret text)")
    session.execute(sql.SQL("GRANT SELECT (id, name) ON t TO {}").format(sql.Identifier(stranger)))
    become(session, stranger)
    table = read_table(session, "t")
    with pytest.raises(TableError, match=r'GRANT SELECT \("secret"\) ON "public"."t" TO'):
        select_columns(table)
    assert [column.name for column in select_columns(table, ["name"])] == ["name", "id"]


def test_row_level_security_is_refused_where_it_hides_rows(session: Session, stranger: str) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    session.execute(sql.SQL("GRANT SELECT ON t TO {}").format(sql.Identifier(stranger)))
    assert read_table(session, "t").name.name == "t"
    become(session, stranger)
    assert "BYPASSRLS" in refusal(session, "")


def test_a_table_without_a_key_is_refused_with_the_ways_to_one(session: Session) -> None:
    message = refusal(session, "CREATE TABLE t (id int)")
    assert 'ALTER TABLE "public"."t" ADD PRIMARY KEY' in message
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX' in message


UNIQUE = 'CREATE TABLE t (id int, code text NOT NULL); CREATE UNIQUE INDEX "By code" ON t (code);'


def test_a_table_with_a_fitting_unique_index_is_told_of_it(session: Session) -> None:
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


def test_a_deferrable_key_is_refused(session: Session) -> None:
    message = refusal(session, "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, n int NOT NULL UNIQUE)")
    assert "deferrable" in message
    assert 'USING INDEX "t_n_key"' in message


def test_a_key_without_overlaps_is_refused(session: Session, database: Database) -> None:
    require_version(database, 180_000, "a temporal key")
    statements = """
        CREATE EXTENSION btree_gist;
        CREATE TABLE t (id int, during tstzrange, PRIMARY KEY (id, during WITHOUT OVERLAPS))
    """
    assert "access method gist" in refusal(session, statements)


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


def test_generated_columns_are_those_the_log_may_lack(session: Session, database: Database) -> None:
    virtual = database.server.version >= 180000
    table = described(
        session,
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED"
        + (", thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL)" if virtual else ")"),
    )
    found = [(column.generated, column.logged) for column in table.columns]
    assert found[:2] == [(Generated.NO, True), (Generated.STORED, virtual)]
    assert not virtual or found[2] == (Generated.VIRTUAL, False)


def test_a_generated_key_needs_a_server_that_logs_it(session: Session, database: Database) -> None:
    statements = "CREATE TABLE t (id int, twice int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY)"
    if database.server.version >= 180000:
        assert key_of(described(session, statements)) == ["twice"]
    else:
        assert "'twice' is generated" in refusal(session, statements)


PARTITIONED = """
    CREATE TABLE t (id int, r text, v text, PRIMARY KEY (r, id)) PARTITION BY LIST (r);
    CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a');
    CREATE TABLE t_b PARTITION OF t FOR VALUES IN ('b') PARTITION BY RANGE (id);
    CREATE TABLE t_b1 PARTITION OF t_b FOR VALUES FROM (0) TO (1000000);
"""


def test_a_partitioned_table_is_described_by_its_root_and_sized_by_its_partitions(session: Session) -> None:
    table = described(
        session,
        f"""{PARTITIONED}
        INSERT INTO t SELECT g, CASE WHEN g <= 3000 THEN 'a' ELSE 'b' END, repeat('x', 100)
                      FROM generate_series(1, 10000) g;
        ANALYZE t""",
    )
    assert table.partitioned
    assert key_of(table) == ["r", "id"]
    size = read_size(session, table)
    assert size.row_count == pytest.approx(10_000, rel=0.01)
    assert 130 < size.row_bytes < 300
    assert read_size(session, read_table(session, "t_a")).row_count == pytest.approx(3_000, rel=0.01)


@pytest.mark.parametrize(
    ("before", "partitions", "width"),
    [("", "", 1), ("", "", 6_000), ("ANALYZE t", "", 6_000), ("", "PARTITION BY HASH (id)", 6_000)],
)
def test_a_table_that_was_never_analyzed_with_rows_has_a_sampled_size(
    session: Session, before: str, partitions: str, width: int
) -> None:
    session.execute(f"CREATE TABLE t (id int PRIMARY KEY, v text) {partitions}")
    session.execute("ALTER TABLE t ALTER v SET STORAGE PLAIN")
    if partitions:
        session.execute("CREATE TABLE t_0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    session.execute(f"ALTER TABLE {'t_0' if partitions else 't'} SET (autovacuum_enabled = false); {before}")
    table = read_table(session, "t")
    assert read_size(session, table).row_count == 1
    session.execute(f"INSERT INTO t SELECT g, repeat('x', {width}) FROM generate_series(1, 10000) g")
    size = read_size(session, table)
    assert 5_000 < size.row_count < 20_000
    assert width < size.row_bytes < 2 * (width + 100)


@pytest.mark.parametrize("partition", ["", "filled, and not analyzed"], ids=["all of it", "a half of it"])
def test_a_table_that_was_all_but_empty_when_it_was_analyzed_has_a_sampled_size(
    session: Session, partition: str
) -> None:
    kept = "PARTITION OF t FOR VALUES FROM (1) TO (100001)" if partition else "(id int PRIMARY KEY)"
    if partition:
        session.execute(
            "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
            "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (100001) TO (200001);"
            "INSERT INTO t SELECT generate_series(100001, 200000); ANALYZE t_1"
        )
    name = "t_0" if partition else "t"
    session.execute(f"CREATE TABLE {name} {kept} WITH (autovacuum_enabled = false)")
    session.execute("INSERT INTO t SELECT generate_series(1, 100000)")
    session.execute("DELETE FROM t WHERE id < 100000")
    session.execute(f"VACUUM {name}")
    session.execute("INSERT INTO t SELECT generate_series(1, 99999)")
    rows = 200_000 if partition else 100_000
    assert rows / 2 < read_size(session, read_table(session, "t")).row_count < rows * 2


def test_a_table_of_which_little_is_left_has_no_more_rows_than_that(session: Session) -> None:
    """As a queue of large values has: taken for many small ones they would be more than a batch may have."""
    table = described(session, "CREATE TABLE t (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = false)")
    session.execute("INSERT INTO t SELECT g, repeat('x', 1900) FROM generate_series(1, 20000) g")
    session.execute("DELETE FROM t WHERE id % 40 <> 0")
    session.execute("VACUUM ANALYZE t")
    assert read_size(session, table).row_count < 1_500


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ("ALTER TABLE t_b1 REPLICA IDENTITY NOTHING", 'ALTER TABLE "public"."t_b1" REPLICA IDENTITY DEFAULT'),
        (
            "CREATE UNIQUE INDEX i ON t_a (v); ALTER TABLE t_a ALTER v SET NOT NULL, REPLICA IDENTITY USING INDEX i",
            '"public"."t_a" logs of an old row v, expected its key (r, id) or all of it',
        ),
        ("ALTER TABLE t_a SET UNLOGGED", 'ALTER TABLE "public"."t_a" SET LOGGED'),
        ("ALTER TABLE t REPLICA IDENTITY NOTHING", 'ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT'),
    ],
)
def test_a_partition_that_does_not_log_the_key_is_refused_by_name(
    session: Session, statements: str, words: str
) -> None:
    session.execute(PARTITIONED)
    assert words in refusal(session, statements)


def test_a_partition_is_advised_to_log_its_key_by_its_own_index(session: Session) -> None:
    """Not whole rows: where the publication has a list of columns nobody could write to the partition then."""
    table = """
        CREATE TABLE t (id int NOT NULL, "B" int NOT NULL, v int) PARTITION BY RANGE (id);
        CREATE UNIQUE INDEX u ON t ("B", id); ALTER TABLE t REPLICA IDENTITY USING INDEX u;
        CREATE TABLE "T a" PARTITION OF t FOR VALUES FROM (0) TO (9);
        CREATE UNIQUE INDEX other ON "T a" (id); CREATE UNIQUE INDEX wider ON "T a" ("B", id, v);
        ALTER INDEX "T a_B_id_idx" RENAME TO "I"
    """
    advice = 'ALTER TABLE "public"."T a" REPLICA IDENTITY USING INDEX "I"'
    assert advice in refusal(session, table)
    session.execute(advice)
    assert key_of(read_table(session, "t")) == ["B", "id"]


def test_an_unlogged_partitioned_table_has_to_be_made_again(session: Session, database: Database) -> None:
    require_before(database, 180_000, "unlogged partitioned tables")
    unlogged = "CREATE UNLOGGED TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)"
    assert "Make it again without UNLOGGED" in refusal(session, unlogged)


def test_a_partition_that_logs_whole_rows_logs_any_key(session: Session) -> None:
    assert key_of(described(session, f"{PARTITIONED} ALTER TABLE t_a REPLICA IDENTITY FULL")) == ["r", "id"]


def test_collations_are_resolved_to_whether_they_sort_by_bytes(session: Session, database: Database) -> None:
    table = described(
        session,
        """CREATE TABLE t (id int PRIMARY KEY, c text COLLATE "C", p text COLLATE "POSIX", u text COLLATE ucs_basic,
                           e text COLLATE "en_US.utf8", n name, d text, b bytea)""",
    )
    found = {column.name: column.collation for column in table.columns}
    assert found["id"] is None
    assert found["b"] is None
    by_bytes = {name: collation.byte_order for name, collation in found.items() if collation}
    default = by_bytes.pop("d")
    assert by_bytes == {"c": True, "p": True, "u": True, "e": False, "n": True}
    locale = database.execute("SELECT datcollate FROM pg_database WHERE datname = current_database()")[0][0]
    assert default == (locale in ("C", "POSIX"))


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


def test_the_server_is_described(session: Session) -> None:
    server = read_server(session)
    assert not server.in_recovery
    assert server.timeline >= 1
    assert server.system_identifier > 0
    assert server.wal_level == "logical"


def test_a_role_without_rights_can_describe_the_server(session: Session, stranger: str) -> None:
    server = read_server(session)
    become(session, stranger)
    assert read_server(session) == server
