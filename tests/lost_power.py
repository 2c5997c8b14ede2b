"""A machine that loses power: what was synced is left of its files, under the names that were synced."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest


class Disk:
    """What `os.fsync` has made durable in a folder whose own name is durable. What DuckDB syncs does not count."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISDIR(found.st_mode):
            self._names[path] = {item.name: item.inode() for item in os.scandir(path)}
        else:
            self._contents[found.st_ino] = path.read_bytes()

    @property
    def files(self) -> set[str]:
        """The names of all files that are durable."""
        return {path.name for path, _ in self._found(self._folder)}

    def lose_power(self) -> None:
        found = list(self._found(self._folder))
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        for path, content in found:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def _found(self, folder: Path) -> list[tuple[Path, bytes]]:
        """Returns the durable files with their contents; one whose name was synced, and itself not, is empty."""
        found: list[tuple[Path, bytes]] = []
        for name, number in self._names.get(folder, {}).items():
            path = folder / name
            if path in self._names:
                found += self._found(path)
            elif not path.is_dir():
                found.append((path, self._contents.get(number, b"")))
        return found
