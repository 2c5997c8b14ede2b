"""One Arrow array of pgoutput messages, read at many positions at once.

The rules are those of the PostgreSQL manual, "Logical Replication Message Formats", for protocol version 1
without the `binary` option. All integers of the protocol are big-endian and unaligned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from backfill.arrow.arrays import Mask
from backfill.errors import DefiniteError

Positions: TypeAlias = NDArray[np.int64]

BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
RELATION: Final = ord("R")
INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
TRUNCATE: Final = ord("T")
STREAM_ABORT: Final = ord("A")
"""By the manual only for streamed transactions, which protocol version 1 does not have. PostgreSQL 18 sends it all the
same for a large transaction with savepoints that was rolled back and of which it has sent nothing.
"""

_SHORTEST: Final = {"B": 21, "C": 26, "O": 10, "R": 10, "Y": 7, "I": 8, "U": 8, "D": 8, "T": 6, "M": 15, "A": 9}


def by_byte(values: Mapping[int, int]) -> NDArray[np.uint8]:
    """A value for each byte; 0 where none is given."""
    table = np.zeros(256, np.uint8)
    table[list(values.keys())] = list(values.values())
    return table


_SHORTEST_OF: Final = by_byte({ord(kind): length for kind, length in _SHORTEST.items()})


@dataclass(frozen=True)
class Messages:
    """Message `i` is the bytes `[start[i], end[i])` of `data`; its first byte is `kind[i]`, a known type.

    A message is at least as long as the fixed part of its type, so that part may be read unchecked. The
    `uint` methods take any positions that are not negative. A number that would reach beyond the data reads
    as something arbitrary: whoever follows a length compares where it leads with `end`.
    """

    data: pa.Buffer
    start: Positions
    end: Positions
    kind: NDArray[np.uint8]
    _raw: NDArray[np.uint8]

    def uint8(self, at: Positions) -> NDArray[np.uint8]:
        return self._raw[np.minimum(at, len(self._raw) - 1)]

    def uint16(self, at: Positions) -> Positions:
        return self._read(">u2", at).astype(np.int64)

    def uint32(self, at: Positions) -> Positions:
        return self._read(">u4", at).astype(np.int64)

    def uint64(self, at: Positions) -> NDArray[np.uint64]:
        return self._read(">u8", at).astype(np.uint64)

    def bytes_of(self, message: int) -> bytes:
        """The whole message; for the few that describe something rather than carry a row."""
        return self._raw[self.start[message] : self.end[message]].tobytes()

    def _read(self, dtype: str, at: Positions) -> NDArray[np.unsignedinteger]:
        # One number begins at every byte, so that a gather reads an unaligned number in one step.
        size = np.dtype(dtype).itemsize
        last = len(self._raw) - size
        numbers: NDArray[np.unsignedinteger] = np.ndarray((last + 1,), dtype, self._raw, strides=(1,))
        return numbers[np.minimum(at, last)]


def read_messages(array: pa.Array[Any]) -> Messages:
    """The messages of a binary array; nothing is copied."""
    if array.null_count:
        raise malformed("a message is null")
    _, offsets_buffer, data = array.buffers()
    if len(array) == 0 or offsets_buffer is None:
        offsets = np.zeros(1, np.int64)
    else:
        offsets = np.frombuffer(memoryview(offsets_buffer), np.int32)[array.offset :][: len(array) + 1].astype(np.int64)
    raw = np.frombuffer(memoryview(data), np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    if len(raw) < 8:
        raw = np.pad(raw, (0, 8 - len(raw)))
    start, end = offsets[:-1], offsets[1:]
    require(end > start, "a message is empty")
    messages = Messages(data or pa.py_buffer(b""), start, end, raw[start], raw)
    _require_known(messages)
    return messages


def _require_known(messages: Messages) -> None:
    shortest = _SHORTEST_OF[messages.kind]
    unknown = shortest == 0
    if unknown.any():
        byte = int(messages.kind[np.argmax(unknown)])
        raise malformed(f"the message type 0x{byte:02X} ({chr(byte)!r}) is unknown")
    require(messages.end - messages.start >= shortest, "a message is shorter than its type allows")


def require(holds: Mask, otherwise: str) -> None:
    """Refuses the change log unless `holds` is true throughout; else `otherwise` says what is wrong with it."""
    if not holds.all():
        raise malformed(otherwise)


def malformed(what: str) -> DefiniteError:
    """The error for a change log that is not what the protocol says; guessing would give wrong rows."""
    return DefiniteError(
        f"the change log cannot be read: {what}. Expected pgoutput messages of protocol version 1 in text mode, "
        "without streaming and two-phase commit. This release reads PostgreSQL 14 to 19: for a newer server upgrade "
        "pyspark-backfill, else please report this with the server's version"
    )
