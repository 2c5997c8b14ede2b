"""What the catalog says of a table: how it is found, its columns, its key, its rights, and its server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql

from backfill.errors import TableError
from backfill.upstream.postgres.description import Generated, QualifiedName
from backfill.upstream.postgres.session.server import read_server
from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.selection import select_columns
from integration.database import Database
from integration.described import Session, become, described, key_of, refusal


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
