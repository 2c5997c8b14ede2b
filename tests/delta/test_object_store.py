"""Delta tables on an object store: what they are asked for, and what is said where it refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.amounts import iso
from backfill.errors import ConnectionLostError, DatabaseSetupError, TableError
from backfill.options import parse
from backfill.sinks.delta import TRIES, apply_to
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.files.log import Log
from backfill.upstream.delta.tables import latest
from backfill.upstream.delta.tables.latest import Head
from backfill.upstream.delta.tables.opening import open_latest
from backfill.vnode import WHOLE_TABLE
from integration.object_store import BUCKET, ObjectStore, named_by_environment
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun
from tests.sinks.batches import batch_of, row

TABLE = f"s3://{BUCKET}/orders"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with named_by_environment(monkeypatch) as store:
        yield store


def insert(number: int, batch_id: int) -> None:
    apply_to(path=TABLE, key=["a", "b"], query="q")(batch_of(row("insert", number, "x", "1")), batch_id)


def test_a_clone_that_has_another_name_for_the_store_is_opened_by_that(store: ObjectStore) -> None:
    """Spark on Hadoop gives S3 the name `s3a`."""
    write_deltalake(TABLE, pa.table({"id": range(3)}), configuration=FEED)
    for name, content in list(store.objects.items()):
        whole = content.replace(b'"path":"', b'"path":"s3a://%s/orders/' % BUCKET.encode())
        store.objects[name.replace("orders/", "clone/")] = whole

    def read(path: str) -> list[Any]:
        found = DeltaUpstream(parse({"path": path, "keyColumns": "id"})).reader().scan([WHOLE_TABLE])
        return [key for batch in found for key in batch["id"].to_pylist()]

    with pytest.raises(TableError, match=rf"are in s3a://{BUCKET}/, .* begin path with that name"):
        read(f"s3://{BUCKET}/clone")
    assert read(f"s3a://{BUCKET}/clone") == [0, 1, 2]


def test_a_stream_looks_at_it_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local table is taken for a remote one: while `deltalake` asks, no server in this process could answer."""
    looks = 0
    is_latest = Head.is_latest

    def counted(head: Head, log: Log) -> bool:
        nonlocal looks
        looks += 1
        return is_latest(head, log)

    monkeypatch.setattr(latest, "is_remote", lambda _: True)
    monkeypatch.setattr(latest, "LOOK_INTERVAL", 3600.0)
    monkeypatch.setattr(Head, "is_latest", counted)
    table = tmp_path / "orders"
    write_deltalake(table, pa.table({"id": range(20), "v": ["a"] * 20}), configuration=FEED)
    run = DeltaRun(tmp_path, table)
    run.batch()
    run.catch_up()
    looks = 0
    changed = time.time_ns() // 1000
    DeltaTable(table).delete("id = 3")
    for _ in range(10):
        assert not run.batch()
        assert str(run.stream().report()["complete_until"]) < iso(changed)
    assert looks == 0
    monkeypatch.setattr(latest, "LOOK_INTERVAL", 0.0)
    assert run.batch()
    assert looks > 0
    monkeypatch.setattr(latest, "LOOK_INTERVAL", 3600.0)
    DeltaTable(table).delete("id = 4")
    run.restart()
    assert run.batch()


def test_what_a_batch_asks_for_grows_little_with_the_batches_before(store: ObjectStore) -> None:
    """The table's log has a commit for each batch, until `deltalake` makes a checkpoint of them."""
    asked = []
    for number in range(9):
        insert(number, number)
        asked.append(len(store.kinds()))
    # Each batch asks for about 3 more; now and then `deltalake` gets by with a few less.
    assert asked[8] - asked[2] <= 6 * 5


def test_of_drivers_that_apply_the_same_batch_one_does(store: ObjectStore) -> None:
    insert(0, 0)
    with ThreadPoolExecutor(4) as drivers:
        list(drivers.map(lambda _: insert(1, 1), range(4)))
    assert pa.table(DeltaTable(TABLE).scan(columns=["a"])).sort_by("a").to_pylist() == [{"a": 0}, {"a": 1}]
    assert DeltaTable(TABLE).version() == 2
    assert not store.uploads


def test_a_table_is_made_though_another_one_seemed_to_make_it(store: ObjectStore) -> None:
    """S3 may tell writers of one object that they conflict, and still the object need not be there."""
    conflicts = [(409, "ConditionalRequestConflict")] * (TRIES - 1)
    store.refuse = lambda request: conflicts.pop() if conflicts and request.kind == "PUT" else None
    insert(0, 0)
    assert not conflicts
    assert DeltaTable(TABLE).version() == 1


def test_the_reason_is_shown_and_no_url(store: ObjectStore) -> None:
    insert(0, 0)
    with pytest.raises(TableError, match=r"s3://elsewhere/t .* 404 Not Found: NoSuchBucket$"):
        open_latest("s3://elsewhere/t")
    store.refuse = lambda request: (403, "AccessDenied") if request.kind == "PUT" else None
    with pytest.raises(
        DatabaseSetupError, match=r"refused the access: .* 403 Forbidden: AccessDenied\. Credentials"
    ) as e:
        insert(1, 1)
    assert "http://" not in e.value.message


def test_plain_http_that_is_not_allowed_is_reported(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(TableError, match="URL scheme is not allowed"):
        open_latest(TABLE)
    assert not store.requests


def test_a_store_that_asks_to_slow_down_may_answer_later(store: ObjectStore) -> None:
    insert(0, 0)
    store.refuse = lambda _: (503, "SlowDown")
    with pytest.raises(ConnectionLostError, match=r"does not answer: .* 503 Service Unavailable: SlowDown"):
        open_latest(TABLE)
