"""How the command ends that is cut short."""

from __future__ import annotations

import pytest

from backfill import __main__ as command


@pytest.mark.parametrize(("name", "expected"), [("drop", 130), ("status", 0)])
def test_only_a_look_that_is_interrupted_is_a_success(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: int
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, f"_{name}", interrupted)
    assert command.main([name, "--state-dir", "/nowhere"]) == expected
