"""Deletes with a deletion vector, as other writers make them: `deltalake` reads vectors and does not write them."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

PROPERTIES = {"delta.enableDeletionVectors": "true"}


def delete_rows(folder: Path, places: Sequence[int], *, within: str = "") -> None:
    """Makes a commit after which exactly the rows at these places of the only file in this folder are deleted."""
    replace_vector(folder, _vector(places), within=within)


def replace_vector(folder: Path, vector: dict[str, Any], *, within: str = "") -> None:
    """Makes a commit after which the only file in this folder has this vector."""
    version = DeltaTable(folder).version()
    before = _only_file(folder, version, within)
    after = {**before, "deletionVector": vector}
    gone = {name: before[name] for name in ("path", "partitionValues", "size", "deletionVector") if before.get(name)}
    gone |= {"partitionValues": before["partitionValues"], "dataChange": True, "extendedFileMetadata": True}
    actions = [{"commitInfo": {"timestamp": 1_800_000_000_000, "operation": "DELETE", "operationParameters": {}}}]
    commit(folder, [*actions, {"remove": gone}, {"add": after}])


def commit(folder: Path, actions: Sequence[dict[str, Any]]) -> None:
    """Writes a commit with these actions, whatever they are."""
    version = DeltaTable(folder).version() + 1
    text = "\n".join(json.dumps(action) for action in actions)
    (folder / "_delta_log" / f"{version:020}.json").write_text(text)


def definition(folder: Path) -> dict[str, Any]:
    """Returns the table's definition from its first commit."""
    lines = (folder / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    [found] = [action["metaData"] for action in map(json.loads, lines) if "metaData" in action]
    return dict(found)


def _only_file(folder: Path, version: int, within: str) -> dict[str, Any]:
    for number in range(version, -1, -1):
        text = (folder / "_delta_log" / f"{number:020}.json").read_text()
        for action in map(json.loads, text.splitlines()):
            if "add" in action and action["add"]["path"].startswith(within):
                found: dict[str, Any] = action["add"]
                return found
    raise AssertionError("the table has no file")


def _vector(places: Sequence[int]) -> dict[str, Any]:
    """Makes an inline `RoaringBitmapArray` of the Delta protocol, with one bitmap of one array container."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(places) - 1, 16) + struct.pack(f"<{len(places)}H", *sorted(places))
    return inline(struct.pack("<iqI", 1681511377, 1, 0) + bitmap, len(places))


def inline(content: bytes, rows: int) -> dict[str, Any]:
    """Makes a vector with these bytes that is stored in the log itself."""
    text = text_of(content + bytes(-len(content) % 4))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(content), "cardinality": rows}


def text_of(content: bytes) -> str:
    return base64.b85encode(content).decode().translate(str.maketrans(_B85, _Z85))
