"""What a person asks of a stream from outside its process: to read rows again, or no more of them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from backfill.control import Control, ReadAgain, Stop
from backfill.errors import KeyTextError, StateBusyError, StateError
from backfill.offset import Barrier
from backfill.options.texts import is_characters
from backfill.state_dir.control_file import changing, keep_control, read_control
from backfill.state_dir.kept_options import has_place, keeps_the_latest
from backfill.state_dir.views import looking, standing
from backfill.upstream.noted import in_own_order
from backfill.vnode import Key


def ask_again(folder: Path, first: Sequence[str] | None, last: Sequence[str] | None) -> str:
    """Asks the stream with this stateDir to read the rows from `first` to `last` again; says when it will.

    Both ends are included, and None is an open one. Raises KeyTextError where an end is no key of the table, or `last`
    lies before `first`, as far as that can be told without the database.
    """
    with changing(folder):
        (found, barrier), control = standing(folder), read_control(folder)
        stream, key = found.stream_id, found.key
        if not has_place(found.properties):
            raise StateError("a stream with startupMode=snapshot is one batch, and reads no rows again")
        bookmark = found.properties if barrier is None else barrier.bookmark
        if keeps_the_latest(bookmark):
            raise StateError(
                "by its orderColumn the stream may have emitted a later row than the table has, which reading that "
                "again would undo; start over instead"
            )
        request = ReadAgain(_new_id(), stream, _key(key, first), _key(key, last))
        if not in_own_order(bookmark) and _turned_round(key, request):
            raise KeyTextError("the range ends before it begins, so no row would be read; give the smaller key first")
        keep_control(folder, control.asked(request, _taken_up(barrier)))
    return f"request {request.id}: {_rows(request)} are read again {_when(stream, barrier, control)}"


def ask_to_stop(folder: Path) -> str:
    """Asks the stream to end reading rows again: the request that is under way, and those that wait."""
    with changing(folder):
        (found, barrier), control = standing(folder), read_control(folder)
        stream = found.stream_id
        under_way = barrier is not None and barrier.took_again
        waiting = control.pending(stream, _taken_up(barrier))
        if not waiting.to_read and (waiting.stop is not None or not under_way):
            raise StateError("no rows are being read again, and no request waits; nothing was changed")
        keep_control(folder, control.asked(Stop(_new_id(), stream), _taken_up(barrier)))
    return "from the next batch on, no rows are read again"


def require_batches(folder: Path) -> None:
    """Raises StateError for a stream that is one batch, and so cannot be held up; not where its state is unreadable."""
    found = None
    with contextlib.suppress(StateError, StateBusyError), looking(folder) as store:
        found = store.identity()
    if found is not None and not has_place(found.properties):
        raise StateError(
            "a stream with startupMode=snapshot is one batch, which cannot be paused or throttled; stop the query"
        )


def _taken_up(barrier: Barrier | None) -> str | None:
    return None if barrier is None else barrier.taken_up


def _new_id() -> str:
    return uuid.uuid4().hex[:8]


def _key(key: pa.Schema, texts: Sequence[str] | None) -> Key | None:
    if texts is None:
        return None
    if len(texts) != len(key):
        raise KeyTextError(
            f"a key has a value for each of ({', '.join(key.names)}), {len(key)} in all; got {len(texts)}"
        )
    for field, text in zip(key, texts, strict=True):
        if not _fits(text, field.type):
            raise KeyTextError(f"the value for the key column {field.name} is not of its type, {field.type}")
    return tuple(texts)


def _fits(text: str, kind: pa.DataType) -> bool:
    """Whether the text may be a value of the type; for types that Arrow does not read, any text may."""
    return _is_storable(text) and (not _readable(kind) or _rank(text, kind) is not None)


def _is_storable(text: str) -> bool:
    """Whether a database can store the text."""
    return "\0" not in text and is_characters(text)


def _turned_round(key: pa.Schema, request: ReadAgain) -> bool:
    """Whether the last key is known to lie before the first one.

    Only the database knows how it orders values of types that Arrow does not read: where the first column in which the
    two differ is of such a type, this is False.
    """
    for field, first, last in zip(key, request.first or (), request.last or (), strict=False):
        if first == last:
            continue
        begin, end = _rank(first, field.type), _rank(last, field.type)
        if begin is None or end is None or begin < end:
            return False
        if begin > end:
            return True
    return False


def _rank(text: str, kind: pa.DataType) -> int | Decimal | None:
    """A number that grows with the value; None where Arrow does not read the text as the type."""
    for readable in _readable(kind):
        with contextlib.suppress(pa.ArrowInvalid):
            value = pa.array([text]).cast(readable)
            if not pa.types.is_decimal(readable):  # Beyond the year 9999 Python has neither dates nor instants.
                value = value.cast(pa.int32() if pa.types.is_date(readable) else pa.int64())
            rank: int | Decimal = value[0].as_py()
            return rank
    return None


def _readable(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return [kind]
    if pa.types.is_timestamp(kind):
        # A zone may be left out. Where the type has none, none may be given: the database would pass over it.
        return [pa.timestamp("us"), *([kind] if kind.tz else [])]
    return []


def _rows(request: ReadAgain) -> str:
    begin = "" if request.first is None else f" from {', '.join(request.first)}"
    end = "" if request.last is None else f" to {', '.join(request.last)}"
    return f"the rows{begin}{end}" if begin or end else "all rows"


def _when(stream: str, barrier: Barrier | None, control: Control) -> str:
    after = []
    if barrier is None or barrier.progress.unfinished:
        after.append("when the table has been read for the first time")
    before = control.pending(stream, _taken_up(barrier))
    under_way = barrier is not None and barrier.takes_again and before.stop is None
    count = len(before.to_read) + under_way
    if count:
        after.append(f"after {count} request{'s' if count > 1 else ''} that came before")
    if control.holds:
        after.append("when the stream is resumed")
    return ", ".join(after) or "from the next batch on"
