"""Rows of the target are found by keys of any type, as the index of its key compares them."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from backfill.errors import DefiniteError, TableError
from integration.copies import NEW_YEAR, batch_of, inserts, sink
from integration.database import Database
from integration.sessions import EVERY, terminate
from integration.waiting import eventually
from tests.collected import Rows

CHANGES = ("insert", "update_postimage", "delete")

TYPES = """
    CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext; CREATE EXTENSION ltree SCHEMA ext;
    CREATE TYPE ext.colour AS ENUM ('red', 'green', 'blue');
    CREATE DOMAIN ext.shade AS ext.colour CHECK (VALUE <> 'blue'); CREATE DOMAIN paint AS ext.shade
"""


@pytest.mark.parametrize(
    ("kind", "first", "second", "second_again"),
    [
        ("ext.colour", "red", "green", "green"),
        ("ext.shade", "red", "green", "green"),
        ("paint", "red", "green", "green"),
        ("ext.ltree", "a.b", "a.c", "a.c"),
        ("ext.citext", "x", "y", "Y"),
        ("varchar(3)", "x", "y", "y"),
        ("char(3)", "x", "y", "y "),
        ("inet", "10.0.0.1", "10.0.0.2", "10.0.0.2/32"),
        ("text[]", "{a}", "{b}", "{b}"),
        ("int4range", "[1,2)", "[2,3)", "[2,2]"),
    ],
)
def test_a_row_is_found_by_a_key_of_any_type(
    database: Database, tmp_path: Path, kind: str, first: str, second: str, second_again: str
) -> None:
    database.execute(f"{TYPES}; CREATE TABLE copy (n int, k {kind}, v text, w text, PRIMARY KEY (k, n))")
    apply = sink(database, tmp_path, "n", "k")

    def rows(*pairs: tuple[str, str]) -> Rows:
        columns = {"n": 1, "v": "new", "w": "new"}
        unchanged = {"update_postimage": ["w"]}
        return batch_of(
            *(
                {**columns, "k": key, "_change_type": change, "_unchanged_columns": unchanged.get(change, [])}
                for key, change in pairs
            )
        )

    apply(rows((first, "insert"), (second, "insert")), 0)
    database.execute("UPDATE copy SET v = 'old', w = 'old'")
    apply(rows((first, "delete"), (second_again, "update_postimage")), 1)
    assert database.execute("SELECT v, w FROM copy") == [("new", "old")]


def test_a_key_that_the_target_would_give_itself_is_that_of_the_batch(database: Database, tmp_path: Path) -> None:
    """Such is the key of a copy made LIKE the table with INCLUDING ALL."""
    database.execute("CREATE TABLE copy (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    apply = sink(database, tmp_path)
    for number, change in enumerate(["insert", "update_postimage"]):
        apply(batch_of({"id": 7, "v": change, "_change_type": change}), number)
        assert database.execute("TABLE copy") == [(7, change)]


def test_a_table_may_be_called_as_a_row_that_is_not_inserted(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE excluded (id int PRIMARY KEY, v text)")
    apply = sink(database, tmp_path, table="excluded")
    for number, value in enumerate("ab"):
        apply(batch_of({"id": 1, "v": value}), number)
        assert database.execute("TABLE excluded") == [(1, value)]


def test_a_key_that_the_target_computes_is_refused(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int, g int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY)")
    apply = sink(database, tmp_path, "g")
    with pytest.raises(TableError, match="is computed there"):
        apply(batch_of({"id": 7, "g": 14}), 0)


def test_the_sign_of_a_zero_in_a_key_changes_as_in_the_table(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (k float8 PRIMARY KEY, v text)")
    apply = sink(database, tmp_path, "k")
    for number, zero in enumerate([0.0, -0.0, 0.0]):
        apply(batch_of({"k": zero, "v": str(number), "_change_type": "update_postimage"}), number)
        assert database.execute("SELECT k::text, v FROM copy") == [(f"{zero:g}", str(number))]


@pytest.mark.parametrize(
    ("kind", "fits", "cut"),
    [
        ("name", "n" * 63, "n" * 64),
        ('"char"', "c", "cc"),
        ("name[]", f"{{{'n' * 63}}}", f"{{{'n' * 64}}}"),
        ('"char"[]', "{c,d}", "{c,dd}"),
    ],
)
def test_a_text_that_a_short_type_would_cut_is_refused(
    database: Database, tmp_path: Path, kind: str, fits: str, cut: str
) -> None:
    database.execute(f"CREATE TABLE copy (k {kind} PRIMARY KEY, v {kind})")
    apply = sink(database, tmp_path, "k")
    row = {"k": fits, "v": fits}
    apply(batch_of(row), 0)
    assert database.execute("SELECT k::text, v::text FROM copy") == [(fits, fits)]
    for change in ({"k": cut}, {"v": cut}):
        with pytest.raises(TableError, match=rf"is {re.escape(kind)}, which would round values .* TYPE text"):
            apply(batch_of(row | change), 1)
    apply(batch_of(row | {"_change_type": "delete"}), 1)
    assert database.execute("TABLE copy") == []


def test_rows_are_found_by_the_index_of_the_key_where_that_has_another_collation_than_the_column(
    database: Database, tmp_path: Path
) -> None:
    """By the column's collation, where it takes `a` and `A` for one, rows of other keys would be found as well."""
    database.execute(
        """
        CREATE TABLE copy (k text COLLATE "POSIX" NOT NULL, v text); CREATE UNIQUE INDEX by_key ON copy (k COLLATE "C");
        DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_seqscan = off', current_database()); END $$
        """
    )
    for number, kind in enumerate(CHANGES):
        sink(database, tmp_path, "k")(batch_of({"k": "a", "v": "1", "_change_type": kind}), number)
    assert database.execute("TABLE copy") == []
    assert terminate(database, EVERY) > 0  # A session that goes on tells of its scans up to ten seconds later.
    scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'by_key'"
    eventually(lambda: database.execute(scans) > [(0,)])


def test_a_row_whose_key_is_a_composite_of_nulls_keeps_its_large_value(database: Database, tmp_path: Path) -> None:
    """IS NULL would take such a key for none."""
    database.execute("CREATE TYPE pair AS (a int, b text); CREATE TABLE copy (k pair PRIMARY KEY, v text, w text)")
    apply = sink(database, tmp_path, "k")
    kept = pa.array([["w"]], pa.list_(pa.string()))
    for number, (change, large, unchanged) in enumerate(
        [("insert", "large", pa.nulls(1, kept.type)), ("update_postimage", None, kept)]
    ):
        row = {"k": ["(,)"], "v": [change], "w": pa.array([large], pa.string()), "_change_type": [change]}
        metadata = {"_commit_version": [1], "_sequence": [number], "_unchanged_columns": unchanged}
        apply(Rows(pa.table({**row, **metadata})), number)
    assert database.execute("SELECT k::text, v, w FROM copy") == [("(,)", "update_postimage", "large")]


@pytest.mark.parametrize("value", ["-", "4294967295", "pg_class"])
def test_a_name_in_the_catalog_arrives_also_where_nothing_has_it(
    database: Database, tmp_path: Path, value: str
) -> None:
    database.execute("CREATE TABLE copy (k regclass PRIMARY KEY, v regclass[])")
    sink(database, tmp_path, "k")(batch_of({"k": value, "v": f"{{{value}}}"}), 0)
    assert database.execute("SELECT k::text, v::text FROM copy") == [(value, f"{{{value}}}")]


def test_names_that_the_database_orders_other_than_by_bytes_are_the_keys(database: Database, tmp_path: Path) -> None:
    database.execute(
        'CREATE TABLE copy (id int, "Region" text, "_Part" int, v text, PRIMARY KEY (id, "Region", "_Part"))'
    )
    apply = sink(database, tmp_path, "id", "Region", "_Part")
    apply(batch_of({"id": 1, "Region": "eu", "_Part": 2, "v": "new"}), 0)
    assert database.execute("TABLE copy") == [(1, "eu", 2, "new")]


@pytest.mark.parametrize(("kind", "keys"), [("integer", [1.5, 2.0]), ("date", [NEW_YEAR, NEW_YEAR.replace(hour=1)])])
def test_keys_that_are_one_in_the_target_are_reported(
    database: Database, tmp_path: Path, kind: str, keys: list[object]
) -> None:
    database.execute(f"CREATE TABLE copy (k {kind} PRIMARY KEY, v int)")
    rows = batch_of(*({"k": key, "v": number} for number, key in enumerate(keys)))
    with pytest.raises(
        TableError, match="different values of the batch are equal in a key column of the sink's table, by its type"
    ):
        sink(database, tmp_path, "k")(rows, 0)


COARSE = """
    CREATE FUNCTION below(text, text) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT lower($1) < lower($2)';
    CREATE FUNCTION like_(text, text) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT lower($1) = lower($2)';
    CREATE FUNCTION cmp(text, text) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT bttextcmp(lower($1), lower($2))';
    CREATE OPERATOR <~ (FUNCTION = below, LEFTARG = text, RIGHTARG = text);
    CREATE OPERATOR =~ (FUNCTION = like_, LEFTARG = text, RIGHTARG = text);
    CREATE OPERATOR CLASS coarse FOR TYPE text USING btree AS OPERATOR 1 <~, OPERATOR 3 =~, FUNCTION 1 cmp(text, text);
"""


@pytest.mark.parametrize(
    "key",
    [
        "ALTER TABLE copy ADD PRIMARY KEY (id), ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED",
        "CREATE UNIQUE INDEX ON copy (id)",
    ],
    ids=["constraint", "index"],
)
def test_another_unique_index_on_the_key_decides_of_no_row(database: Database, tmp_path: Path, key: str) -> None:
    database.execute(f"{COARSE} CREATE TABLE copy (id text, v text); {key}")

    def apply(number: int, key: str, value: str) -> None:
        sink(database, tmp_path)(batch_of({"id": key, "v": value}), number)

    apply(0, "A", "of A")
    database.execute("CREATE UNIQUE INDEX ON copy (id coarse)")
    with pytest.raises(DefiniteError, match="23505"):
        apply(1, "a", "of a")
    assert database.execute("TABLE copy") == [("A", "of A")]


def test_a_key_that_is_checked_later_is_found_by_another_one(database: Database, tmp_path: Path) -> None:
    """An index alone does not do: with it PostgreSQL does not tell the two apart."""
    database.execute("CREATE TABLE copy (id int PRIMARY KEY DEFERRABLE); CREATE UNIQUE INDEX ON copy (id)")
    apply = sink(database, tmp_path)
    with pytest.raises(TableError, match=r"has a DEFERRABLE constraint .* ALTER TABLE … ADD UNIQUE"):
        apply(inserts(1), 0)
    database.execute("ALTER TABLE copy ADD UNIQUE (id)")
    apply(inserts(1), 0)
    assert database.execute("TABLE copy") == [(1,)]


def test_an_index_that_could_not_be_built_is_not_the_keys(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int); INSERT INTO copy VALUES (1), (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        database.execute("CREATE UNIQUE INDEX CONCURRENTLY ON copy (id)")
    with pytest.raises(TableError, match=r'no unique index on exactly \("id"\), or it is DEFERRABLE, INVALID'):
        sink(database, tmp_path)(inserts(1), 0)


def test_rows_that_overlap_are_not_found_by_a_key_without_overlaps(database: Database, tmp_path: Path) -> None:
    if database.server.version < 180_000:
        pytest.skip("there is no such key before PostgreSQL 18")
    database.execute("CREATE TABLE copy (n int4range, k int4range, PRIMARY KEY (n, k WITHOUT OVERLAPS))")
    database.execute("INSERT INTO copy VALUES ('[1,2)', '[1,5)'), ('[1,2)', '[5,9)')")
    rows = batch_of({"n": "[1,2)", "k": "[4,6)", "_change_type": "delete"})
    apply = sink(database, tmp_path, "n", "k")
    with pytest.raises(TableError, match=r"WITHOUT OVERLAPS, .* if it has one, ALTER TABLE copy ADD UNIQUE \("):
        apply(rows, 1)
    database.execute("ALTER TABLE copy ADD UNIQUE (n, k)")
    apply(rows, 1)
    assert database.execute("SELECT count(*) FROM copy") == [(2,)]


def test_an_index_of_expressions_beside_the_key_is_not_the_keys(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int, v text); CREATE UNIQUE INDEX ON copy (id, lower(v))")
    with pytest.raises(TableError, match=r'no unique index on exactly \("id"\)'):
        sink(database, tmp_path)(inserts(1), 0)


def test_a_target_takes_any_xml_whatever_its_database_takes_by_itself(database: Database, tmp_path: Path) -> None:
    try:
        database.execute("SELECT xml 'a'")
    except psycopg.errors.FeatureNotSupported as error:
        pytest.skip(f"this server was built without it: {error}")
    database.execute(
        f"CREATE TABLE copy (id int PRIMARY KEY, v xml); ALTER DATABASE {database.name} SET xmloption = document"
    )
    sink(database, tmp_path)(batch_of({"id": 1, "v": "text"}), 0)
    assert database.execute("SELECT v::text FROM copy") == [("text",)]


@pytest.mark.parametrize(("change", "unchanged"), [("delete", []), ("update_postimage", ["w"])])
def test_a_row_among_many_wide_ones_is_looked_up_in_a_large_target(
    database: Database, tmp_path: Path, change: str, unchanged: list[str]
) -> None:
    """The server takes each text in a temporary table for short, and half of all rows for deleted: for as many rows as
    there then seem to be, it would read the whole target.
    """
    database.execute("CREATE TABLE copy (id bigint PRIMARY KEY, v text, w text)")
    apply = sink(database, tmp_path)
    apply(inserts(0), 0)
    database.execute("INSERT INTO copy SELECT i FROM generate_series(1, 100000) i; ANALYZE copy")
    one = {"id": 50_000, "v": None, "w": None, "_change_type": change, "_unchanged_columns": unchanged}
    many = ({"id": -number, "v": "v" * 1500, "w": "w", "_unchanged_columns": []} for number in range(1, 2000))
    apply(batch_of(one, *many), 1)
    query = "SELECT n_tup_ins::int8, seq_tup_read::int8 FROM pg_stat_user_tables WHERE relname = 'copy'"
    eventually(lambda: database.execute(query)[0][0] == 102_000)  # A session tells of its rows when it ends.
    assert database.execute(query) == [(102_000, 0)]


@pytest.mark.parametrize(("change", "unchanged"), [("delete", []), ("update_postimage", ["w"])])
@pytest.mark.parametrize("rows", [9, 2000])
def test_rows_are_looked_up_in_a_target_of_many_partitions(
    database: Database, tmp_path: Path, change: str, unchanged: list[str], rows: int
) -> None:
    """The server assumes that each row is looked up in all partitions, and would rather read the whole target."""
    database.execute("CREATE TABLE copy (id bigint PRIMARY KEY, v text, w text) PARTITION BY HASH (id)")
    database.execute(
        "DO $$ BEGIN FOR i IN 0..99 LOOP EXECUTE format('CREATE TABLE copy_%s PARTITION OF copy "
        "FOR VALUES WITH (MODULUS 100, REMAINDER %s)', i, i); END LOOP; END $$"
    )
    apply = sink(database, tmp_path)
    apply(inserts(0), 0)
    database.execute("INSERT INTO copy SELECT i FROM generate_series(1, 100000) i; ANALYZE copy")
    some = ({"id": number, "v": None, "w": None, "_change_type": change} for number in range(1, rows + 1))
    apply(batch_of(*(row | {"_unchanged_columns": unchanged} for row in some)), 1)
    query = (
        "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::int8, sum(seq_tup_read)::int8 "
        "FROM pg_stat_user_tables WHERE relname ~ '^copy'"
    )
    eventually(lambda: database.execute(query)[0][0] == 100_001 + rows)  # A session tells of its rows when it ends.
    assert database.execute(query) == [(100_001 + rows, 0)]


@pytest.mark.parametrize(("rows", "joins"), [(300_000, "off"), (1000, "on")], ids=["large", "small"])
@pytest.mark.parametrize(("change", "unchanged"), [("delete", []), ("update_postimage", ["w"])])
def test_a_partitioned_target_that_is_small_beside_the_batch_is_joined_to_it(
    database: Database, tmp_path: Path, change: str, unchanged: list[str], rows: int, joins: str
) -> None:
    """Else the server might compare each row of the one with each of the other."""
    database.execute("CREATE TABLE copy (id bigint PRIMARY KEY, v text, w text) PARTITION BY HASH (id)")
    for number in range(10):
        database.execute(
            f"CREATE TABLE copy_{number} PARTITION OF copy FOR VALUES WITH (MODULUS 10, REMAINDER {number})"
        )
    database.execute(f"INSERT INTO copy SELECT i, 'v', 'w' FROM generate_series(1, {rows}) i; ANALYZE copy")
    database.execute(
        "CREATE TABLE seen (joins text, jit text); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO seen VALUES (current_setting('enable_hashjoin'), current_setting('jit')); RETURN NULL; END $$;"
        "CREATE TRIGGER note AFTER DELETE OR UPDATE ON copy EXECUTE FUNCTION note()"
    )
    some = ({"id": number, "v": None, "w": None, "_change_type": change} for number in range(1, 1001))
    sink(database, tmp_path)(batch_of(*(row | {"_unchanged_columns": unchanged} for row in some)), 0)
    assert database.execute("SELECT DISTINCT joins, jit FROM seen") == [(joins, "off")]
