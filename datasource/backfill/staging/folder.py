"""Where staged files are: a folder of any file system that `pyarrow.fs` opens."""

from __future__ import annotations

import errno
from typing import Final

from pyarrow import fs

from backfill.staging.failures import being

_WRITTEN_MEANWHILE: Final = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
"""How removing a folder fails where somebody puts files there or takes them away at that moment."""

_TRIES: Final = 3


class Folder:
    """The staging folder of one stream, or of all. Picklable; opens its file system when it is first used."""

    def __init__(self, uri: str, stream: str = "") -> None:
        self.uri: Final = uri
        self._stream = stream
        self._opened: tuple[fs.FileSystem, str] | None = None

    def __reduce__(self) -> tuple[type[Folder], tuple[str, str]]:
        return Folder, (self.uri, self._stream)

    def __repr__(self) -> str:
        return f"Folder({self.uri!r}, {self._stream!r})"

    def path(self, *parts: str) -> tuple[fs.FileSystem, str]:
        """The file system, and the path there of what has this name in the folder."""
        if self._opened is None:
            with being("opened"):
                self._opened = fs.FileSystem.from_uri(self.uri)
        filesystem, root = self._opened
        begin = f"{root.rstrip('/')}/" if root else ""  # The root of a file system is a slash and nothing else.
        return filesystem, begin + "/".join(part for part in [self._stream, *parts] if part)

    def remove(self, *parts: str) -> bool:
        """Removes what is in the folder, or in one within it. Returns whether there was anything."""
        filesystem, path = self.path(*parts)
        with being("written"):
            there = _is_folder(filesystem, path)
            if there:
                _delete(filesystem, path)
            return there

    def remove_before(self, number: int) -> None:
        """Removes the folders within it that have smaller numbers; what somebody still writes to is left to the next
        time.
        """
        filesystem, root = self.path()
        with being("written"):
            for info in filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True)):
                if info.base_name.isdigit() and int(info.base_name) < number:
                    try:
                        _delete(filesystem, info.path)
                    except OSError as error:
                        if error.errno not in _WRITTEN_MEANWHILE:
                            raise


def _delete(filesystem: fs.FileSystem, path: str) -> None:
    """Removes a folder into which a reader left over from before may put a file at this moment."""
    for further in reversed(range(_TRIES)):
        try:
            filesystem.delete_dir(path)
        except OSError as error:
            if not further or error.errno not in _WRITTEN_MEANWHILE:
                raise
        if not _is_folder(filesystem, path):
            return


def _is_folder(filesystem: fs.FileSystem, path: str) -> bool:
    return bool(filesystem.get_file_info(path).type == fs.FileType.Directory)
