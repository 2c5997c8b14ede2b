"""Deletion vectors: which rows of a file are deleted, by their places in it.

`DeltaTable.deletion_vectors` gives those of all the table's files at once, with a byte for each row; a commit has a few
of them. So they are read here as the Delta protocol has them (Deletion Vector Format): in a file of the table's folder
or elsewhere, or in the log itself, as a Roaring bitmap of 64 bits.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyroaring import BitMap64

from backfill.arrow.arrays import Indices
from backfill.upstream.delta.files.location import FileLocation, Files

_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85: Final = str.maketrans(_Z85, _B85)

_PORTABLE: Final = 1681511377
"""The number that the bytes begin with: it stands for the only form that the protocol allows to be written."""

_UUID_TEXT: Final = 20
_FIRST: Final = 1
"""Where the first vector of a file begins: after the format's version."""


class DamagedVectorError(ValueError):
    """A deletion vector is not what the log says of it, or not what the protocol allows."""


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """What the log says of a deletion vector. `location` is None where `inline` has its bytes."""

    location: FileLocation | None
    inline: bytes
    offset: int
    size: int
    cardinality: int

    @classmethod
    def of(cls, descriptor: Mapping[str, Any]) -> DeletionVector:
        kind, text = descriptor["storageType"], descriptor["pathOrInlineDv"]
        location, inline = None, b""
        if kind == "i":
            inline = _bytes_of(text)
        elif kind == "u":
            folder, name = text[:-_UUID_TEXT], uuid.UUID(bytes=_bytes_of(text[-_UUID_TEXT:]))
            location = FileLocation("", f"{folder}/deletion_vector_{name}.bin".lstrip("/"))
        elif kind == "p":
            location = FileLocation.of(text)
        else:
            raise DamagedVectorError(f"the storage type {kind!r} is none of u, i, p")
        offset = descriptor.get("offset")
        return cls(
            location, inline, _FIRST if offset is None else offset, descriptor["sizeInBytes"], descriptor["cardinality"]
        )

    def deleted(self, files: Files) -> Indices:
        """The places of the deleted rows, ascending; DamagedVectorError where the bytes are not such a vector."""
        try:
            found = _places(self._bytes(files))
        except (ValueError, struct.error) as error:
            raise DamagedVectorError(str(error)) from None
        if len(found) != self.cardinality:
            raise DamagedVectorError(f"it has {len(found)} rows, and the log says {self.cardinality}")
        return found

    def _bytes(self, files: Files) -> bytes:
        if self.location is None:
            return self.inline[: self.size]
        with files.open(self.location) as opened:
            opened.seek(self.offset)
            read = bytes(opened.read(4 + self.size + 4))
        (size,), content = struct.unpack_from(">I", read), read[4 : 4 + self.size]
        (checksum,) = struct.unpack_from(">I", read, 4 + self.size)
        if size != self.size or checksum != zlib.crc32(content):
            raise DamagedVectorError(f"its size or its checksum in the file {self.location} differs")
        return content


def _bytes_of(text: str) -> bytes:
    return base64.b85decode(text.translate(_TO_B85))


def _places(content: bytes) -> Indices:
    (magic,) = struct.unpack_from("<i", content)
    if magic != _PORTABLE:
        raise DamagedVectorError(f"it begins with {magic}, expected {_PORTABLE}")
    return np.asarray(BitMap64.deserialize(content[4:]).to_array()).astype(np.int64)
