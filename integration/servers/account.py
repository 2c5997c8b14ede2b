"""The account that local servers run as."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pathlib import Path


class Identity(TypedDict, total=False):
    """The arguments of `subprocess.Popen` that make a child run as somebody else."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """A user and a group of this machine."""

    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    @property
    def identity(self) -> Identity:
        # Only root may name a user, even its own.
        return {} if self.is_ours else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Gives `path` to this account; of a link the link itself, not what it leads to."""
        if not self.is_ours:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def unprivileged() -> Account:
    """This process's own account, or `nobody` if that is root: PostgreSQL refuses root.

    `nobody` exists on every machine, so that none has to be created and left behind. It may share its
    processes with others, which is why nothing here ends a process by its account.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    entry = pwd.getpwnam("nobody")
    return Account(entry.pw_uid, entry.pw_gid)
