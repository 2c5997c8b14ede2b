"""Deletion vectors: which rows of a file are deleted, by their places in it.

`DeltaTable.deletion_vectors` gives those of all the table's files at once, with a byte for each row; a commit has a few
of them. So they are read here as the Delta protocol has them (Deletion Vector Format): in a file of the table's folder
or elsewhere, or in the log itself, as 32-bit Roaring bitmaps, one for each 2^32 rows.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from backfill.upstream.delta.files import Files, Place

Places: TypeAlias = npt.NDArray[np.int64]

_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85: Final = str.maketrans(_Z85, _B85)

_PORTABLE: Final = 1681511377
"""What the bytes begin with: the only form that the protocol lets be written."""

_WITHOUT_RUNS, _WITH_RUNS = 12346, 12347
_ARRAY_AT_MOST: Final = 4096
_BITMAP_BYTES: Final = 8192
_OFFSETS_FROM: Final = 4
"""A bitmap with runs in it says where its containers begin if it has so many."""

_UUID_TEXT: Final = 20
_FIRST: Final = 1
"""Where the first vector of a file begins: after the format's version."""


class DamagedVectorError(ValueError):
    """It is not what the log says, or what the protocol lets it be."""


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """What the log says of one. `place` is None where `inline` has its bytes."""

    place: Place | None
    inline: bytes
    offset: int
    size: int
    cardinality: int

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> DeletionVector:
        kind, text = told["storageType"], told["pathOrInlineDv"]
        place, inline = None, b""
        if kind == "i":
            inline = _bytes_of(text)
        elif kind == "u":
            folder, name = text[:-_UUID_TEXT], uuid.UUID(bytes=_bytes_of(text[-_UUID_TEXT:]))
            place = Place("", f"{folder}/deletion_vector_{name}.bin".lstrip("/"))
        elif kind == "p":
            place = Place.of(text)
        else:
            raise DamagedVectorError(f"the storage type {kind!r} is none of u, i, p")
        offset = told.get("offset")
        return cls(place, inline, _FIRST if offset is None else offset, told["sizeInBytes"], told["cardinality"])

    def deleted(self, files: Files) -> Places:
        """The places of the deleted rows, ascending; DamagedVectorError where its bytes are none of one."""
        try:
            found = _treemap(self._bytes(files))
        except (ValueError, struct.error) as error:
            raise DamagedVectorError(str(error)) from None
        if len(found) != self.cardinality:
            raise DamagedVectorError(f"it has {len(found)} rows, and the log says {self.cardinality}")
        return found

    def _bytes(self, files: Files) -> bytes:
        if self.place is None:
            return self.inline[: self.size]
        with files.open(self.place) as opened:
            opened.seek(self.offset)
            read = bytes(opened.read(4 + self.size + 4))
        (size,), content = struct.unpack_from(">I", read), read[4 : 4 + self.size]
        (checksum,) = struct.unpack_from(">I", read, 4 + self.size)
        if size != self.size or checksum != zlib.crc32(content):
            raise DamagedVectorError(f"its size or its checksum in the file {self.place} is another one")
        return content


def _bytes_of(text: str) -> bytes:
    return base64.b85decode(text.translate(_TO_B85))


def _treemap(content: bytes) -> Places:
    magic, count = struct.unpack_from("<iq", content)
    if magic != _PORTABLE:
        raise DamagedVectorError(f"it begins with {magic}, expected {_PORTABLE}")
    at, found = 12, []
    for _ in range(count):
        (high,) = struct.unpack_from("<I", content, at)
        low, at = _bitmap(content, at + 4)
        found.append(low + (high << 32))
    return np.concatenate([np.empty(0, np.int64), *found])


def _bitmap(content: bytes, at: int) -> tuple[Places, int]:
    """What the Roaring bitmap that begins here has, and where it ends."""
    (cookie,) = struct.unpack_from("<I", content, at)
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = np.frombuffer(content, np.uint8, (count + 7) // 8, at + 4)
        runs, at = np.unpackbits(flags, bitorder="little")[:count], at + 4 + len(flags)
    elif cookie == _WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", content, at + 4)
        runs, at = np.zeros(count, np.uint8), at + 8
    else:
        raise DamagedVectorError(f"a bitmap begins with {cookie}")
    heads = np.frombuffer(content, "<u2", 2 * count, at).astype(np.int64).reshape(count, 2)
    at += 4 * count
    if cookie == _WITHOUT_RUNS or count >= _OFFSETS_FROM:
        at += 4 * count
    found = []
    for (high, last), run in zip(heads, runs, strict=True):
        low, at = _container(content, at, int(last) + 1, run=bool(run))
        found.append(low + (high << 16))
    return np.concatenate([np.empty(0, np.int64), *found]), at


def _container(content: bytes, at: int, count: int, *, run: bool) -> tuple[Places, int]:
    """What a container of so many values has, and where it ends."""
    if run:
        (runs,) = struct.unpack_from("<H", content, at)
        pairs = np.frombuffer(content, "<u2", 2 * runs, at + 2).astype(np.int64).reshape(runs, 2)
        found = [np.arange(first, first + more + 1) for first, more in pairs]
        return np.concatenate([np.empty(0, np.int64), *found]), at + 2 + 4 * runs
    if count > _ARRAY_AT_MOST:
        bits = np.unpackbits(np.frombuffer(content, np.uint8, _BITMAP_BYTES, at), bitorder="little")
        return np.flatnonzero(bits), at + _BITMAP_BYTES
    return np.frombuffer(content, "<u2", count, at).astype(np.int64), at + 2 * count
