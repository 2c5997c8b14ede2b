"""Somebody else cleans up the log of the Delta table while a commit cleans it up as well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer

from backfill.errors import FileGoneError
from backfill.sinks.delta import apply_to, start_over
from backfill.sinks.delta.merge import merge
from tests.sinks.batches import Apply, batch_of, content, made_of, row


def cleaned_up_meanwhile(act: Callable[..., Any], *, commits: bool) -> Callable[..., None]:
    """Makes `act` fail as `deltalake` does where it removes expired parts of the log after a commit, and another writer
    was faster; with `commits` false, it fails before the commit.
    """

    def act_and_fail(*of: Any, **named: Any) -> None:
        if commits:
            act(*of, **named)
        raise FileNotFoundError("Object at location _delta_log/00000000000000000000.json not found")

    return act_and_fail


@pytest.mark.parametrize("applied", [True, False])
def test_a_file_that_is_gone_after_the_commit_is_not_in_the_batch(
    tmp_path: Path, apply: Apply, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    with monkeypatch.context() as patched:
        module = import_module("backfill.sinks.delta")
        patched.setattr(module, "merge", cleaned_up_meanwhile(merge, commits=applied))
        with nullcontext() if applied else pytest.raises(FileGoneError):
            apply(batch_of(row("insert", 2, "x", "1")), 1)
    assert len(content(tmp_path)) == (2 if applied else 1)
    apply(batch_of(row("insert", 2, "x", "1")), 1)
    assert content(tmp_path) == [(key, "x", "1", "1") for key in (1, 2)]


@pytest.mark.parametrize("added", [True, False])
def test_a_file_that_is_gone_after_a_column_was_added_is_not_in_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: bool
) -> None:
    apply = apply_to(path=str(tmp_path), key=["a"], query="q", merge_schema=True)
    apply(made_of(["insert"], a=[1]), 0)
    with monkeypatch.context() as patched:
        failing = cleaned_up_meanwhile(TableAlterer.add_columns, commits=added)
        patched.setattr(TableAlterer, "add_columns", failing)
        with nullcontext() if added else pytest.raises(FileGoneError):
            apply(made_of(["insert"], a=[2], v=["x"]), 1)
    assert content(tmp_path) == ([(1, None), (2, "x")] if added else [(1,)])


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_a_file_that_is_gone_after_a_table_was_emptied_is_not_in_the_table(
    tmp_path: Path, apply: Apply, monkeypatch: pytest.MonkeyPatch, *, empty: bool, commits: bool
) -> None:
    """The commit is that of the DELETE, or of the record alone where there is nothing to delete."""
    apply(batch_of(row("insert", 1, "x", "1")), 0)
    if empty:
        DeltaTable(tmp_path).delete()
    with monkeypatch.context() as patched:
        way = "create_write_transaction" if empty else "delete"
        patched.setattr(DeltaTable, way, cleaned_up_meanwhile(getattr(DeltaTable, way), commits=commits))
        with nullcontext() if commits else pytest.raises(FileGoneError):
            start_over(path=str(tmp_path), query="q")
    assert DeltaTable(tmp_path).transaction_version("q") == (-1 if commits else 0)
    assert len(content(tmp_path)) == (0 if commits or empty else 1)
