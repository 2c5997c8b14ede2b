"""A terminal of a given size, as tmux has it, and a picture of what it shows."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

HEIGHT: Final = 14

# rich's own frame, without the font that a browser would have to fetch.
FRAME: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: "DejaVu Sans", arial, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


@dataclass(frozen=True)
class Terminal:
    """A window of a tmux server of its own."""

    socket: Path
    width: int

    def shown(self) -> str:
        """What the window shows, with the colours as escape sequences."""
        return _tmux(self.socket, "capture-pane", "-e", "-p").rstrip("\n")

    def picture(self, title: str) -> str:
        """The same as SVG."""
        text = Text.from_ansi(self.shown())
        console = Console(record=True, width=self.width, file=io.StringIO(), force_terminal=True, legacy_windows=False)
        console.print(text, no_wrap=True)
        return console.export_svg(title=title, code_format=FRAME, unique_id="backfill")


@contextmanager
def terminal(command: Sequence[str], environment: Mapping[str, str], width: int) -> Iterator[Terminal]:
    """A window in which the command runs; both end with the block."""
    with tempfile.TemporaryDirectory(prefix="backfill-tmux-") as folder:
        socket = Path(folder) / "socket"
        given = {**os.environ, **environment, "LANG": "C.UTF-8"}
        size = ["-x", str(width), "-y", str(HEIGHT)]
        _tmux(socket, "-u", "-f", "/dev/null", "new-session", "-d", *size, shlex.join(command), environment=given)
        try:
            yield Terminal(socket, width)
        finally:
            _tmux(socket, "kill-server")


def _tmux(socket: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    command = ["tmux", "-S", str(socket), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
