"""The replication slots of a server, and how much log it keeps for them: what is found before a stream begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from backfill.upstream.findings import Finding
from backfill.upstream.postgres.description import QualifiedName
from backfill.upstream.postgres.replication.slot import BETWEEN_LOOKS, default_name
from backfill.upstream.postgres.session.connection import Session, one_row

# REPACK (CONCURRENTLY) has slots of its own, which max_replication_slots does not count (from PostgreSQL 19 on).
_SLOTS: Final = """
    SELECT pg_catalog.current_setting('max_replication_slots')::int,
           pg_catalog.count(*) FILTER (WHERE plugin IS DISTINCT FROM 'pgrepack')::int,
           coalesce(pg_catalog.array_agg(slot_name::text ORDER BY slot_name)
                    FILTER (WHERE NOT active AND NOT ours AND NOT lost), '{}'),
           coalesce(pg_catalog.array_agg(slot_name::text ORDER BY slot_name) FILTER (WHERE ours AND NOT lost), '{}'),
           coalesce(pg_catalog.array_agg(slot_name::text ORDER BY slot_name) FILTER (WHERE lost), '{}')
    FROM (SELECT *, pg_catalog.starts_with(slot_name::text, 'backfill_') AS ours,
                 coalesce(wal_status, '') = 'lost' AND slot_type = 'logical' AS lost
          FROM pg_catalog.pg_replication_slots) AS s
"""
_LIMITS: Final = """
    SELECT pg_catalog.current_setting('max_slot_wal_keep_size'),
           pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_slot_wal_keep_size')),
           pg_catalog.current_setting('wal_keep_size'),
           pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_keep_size')),
           coalesce(pg_catalog.current_setting('idle_replication_slot_timeout', true), '0')
"""
_KEEP_ENOUGH: Final = "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf()"
LITTLE_LOG: Final = 1 << 30
"""Bytes of log that a server may write while a single batch is read and written."""

_OF_STREAMS: Final = """
    SELECT slot_name::text, CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_size_pretty(
           pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), restart_lsn)) END
    FROM pg_catalog.pg_replication_slots
    WHERE datoid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
      AND plugin = 'pgoutput'
      AND pg_catalog.starts_with(slot_name::text, %(before)s::text)
      AND pg_catalog.length(slot_name::text) = pg_catalog.length(%(before)s::text) + %(more)s
    ORDER BY slot_name::text
"""
_LENGTH_OF_STREAM: Final = 8
"""The number of characters of a stream's identity, with which the name of its slot ends."""


def findings(session: Session, *, needs_one: bool) -> Iterator[Finding]:
    """What is in the way of a stream, or a danger to it, among the server's slots and the settings for its log.

    `needs_one`: the stream is to make a slot.
    """
    yield from _full(session, needs_one=needs_one)
    yield from _limits(session)


def of_streams(session: Session, table: QualifiedName) -> Iterator[Finding]:
    """The slots that streams of the table made: one may be of a stream that is gone, and keep the log for ever.

    A stream finds its own by `stateDir` and checkpoint. Where both were lost, only the slot's name says whose it is.
    """
    stream = "_" * _LENGTH_OF_STREAM
    before = default_name(table.schema, table.name, stream).removesuffix(stream)
    there = session.execute(_OF_STREAMS, {"before": before, "more": _LENGTH_OF_STREAM}).fetchall()
    if there:
        named = ", ".join(f"{name} ({kept})" if kept else name for name, kept in there)
        yield Finding(
            f"streams of {table.quoted()} have made replication slots, for which the server keeps log: {named}. If a "
            "stream's stateDir and checkpoint are gone, drop its slot and its publication, which has the same name: "
            f"SELECT pg_drop_replication_slot(…); DROP PUBLICATION IF EXISTS …; {BETWEEN_LOOKS}",
            refuses=False,
        )


def _full(session: Session, *, needs_one: bool) -> Iterator[Finding]:
    most, used, idle, ours, lost = one_row(session.execute(_SLOTS))
    if used >= most and needs_one:
        useless = f"; invalidated, and of no use to anybody: {', '.join(lost)}" if lost else ""
        unused = f"; not in use at this moment: {', '.join(idle)}" if idle else ""
        streams = f". Of streams: {', '.join(ours)}; {BETWEEN_LOOKS}" if ours else ""
        yield Finding(
            f"all {most} replication slots of the server are taken{useless}{unused}{streams}. Drop one that nobody "
            "needs with SELECT pg_drop_replication_slot(…), or raise the limit and restart the server",
            f"ALTER SYSTEM SET max_replication_slots = {2 * most or 10}",
        )


def _limits(session: Session) -> Iterator[Finding]:
    limit, of_slot, always, of_any, idle_for = one_row(session.execute(_LIMITS))
    if limit == "-1":
        yield Finding(
            "max_slot_wal_keep_size is unlimited: while the stream is stopped, the server keeps its log until the "
            "disk is full. With a limit the slot is invalidated instead, and the stream says so",
            _KEEP_ENOUGH,
            refuses=False,
        )
    elif max(of_slot, of_any) < LITTLE_LOG:
        more = f", and wal_keep_size {always}" if of_any > of_slot else ""
        yield Finding(
            f"max_slot_wal_keep_size is {limit}{more}: once the server has written that much log while the stream is "
            "stopped, or during one batch, the slot is invalidated, and the stream says so",
            _KEEP_ENOUGH,
            refuses=False,
        )
    if idle_for != "0":
        yield Finding(
            f"idle_replication_slot_timeout is {idle_for}: if the stream is stopped for longer than that (as between "
            "two runs with availableNow), or a batch or the trigger's interval takes longer, the slot is "
            "invalidated, and the stream says so",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
            refuses=False,
        )
