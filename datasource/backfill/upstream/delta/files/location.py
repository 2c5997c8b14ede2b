"""Where a table's files are: in its folder, or elsewhere, as those of a shallow clone are with the original table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

_WITH_STORE: Final = re.compile(r"([a-z][a-z0-9+.-]*):(?://([^/]*))?(/.*)", re.IGNORECASE)
"""Such as `s3://bucket/…`, or `file:/…`, which is the same as `file:///…`."""

_ROOT: Final = "/"
"""The store of a whole path that names none: that of the table."""


@dataclass(frozen=True, slots=True)
class FileLocation:
    """Where a file is. `store` is what the path begins in: a URI, `_ROOT`, or nothing for the table's folder."""

    store: str
    path: str

    def __str__(self) -> str:
        """The location as errors show it: without the values of the partition that it lies in."""
        folders = (folder.partition("=") for folder in self.path.split("/"))
        return self.store + "/".join(f"{name}=…" if equals else name for name, equals, _ in folders)

    @classmethod
    def of(cls, uri: str) -> FileLocation:
        """The location by the log's text: a whole URI, a whole path, or a path within the table's folder."""
        found = _WITH_STORE.fullmatch(uri)
        if found is None:
            path = unquote(uri)
            return cls(_ROOT, path.lstrip("/")) if path.startswith("/") else cls("", path)
        scheme, authority, path = found.groups(default="")
        return cls(f"{scheme}://{authority}/", unquote(path).lstrip("/"))


class Files:
    """Opens a table's files, all with the same client. Its credentials are in the environment, or in the options."""

    def __init__(self, folder: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._options = dict(storage_options or {})
        self._root = FileLocation.of(folder).store
        self.own = self._file_system(folder)
        self._stores: dict[str, pa_fs.FileSystem] = {"": self.own}

    def open(self, location: FileLocation) -> pa.NativeFile:
        return self._store(location).open_input_file(location.path)

    def has(self, location: FileLocation) -> bool:
        [found] = self._store(location).get_file_info([location.path])
        return found.type == pa_fs.FileType.File

    def _store(self, location: FileLocation) -> pa_fs.FileSystem:
        if location.store not in self._stores:
            self._stores[location.store] = self._file_system(self._root if location.store == _ROOT else location.store)
        return self._stores[location.store]

    def _file_system(self, uri: str) -> pa_fs.FileSystem:
        return pa_fs.PyFileSystem(DeltaStorageHandler(uri, self._options))
