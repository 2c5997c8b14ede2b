"""Which of the table's columns the stream carries."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.errors import TableError
from backfill.upstream.postgres.description import ColumnDescription, TableDescription, quoted
from backfill.wording import columns_not_there, in_option, no_column


def select_columns(
    table: TableDescription, names: Sequence[str] = (), *, of_spark: bool = False, follows: bool = True
) -> tuple[ColumnDescription, ...]:
    """The named columns (all, where none is named), followed by the key columns that were not named; `of_spark` where
    it is not the option `columns` that names them.

    Refuses, all together: names the table does not have, columns the role may not read, and, where the table
    `follows` changes, generated columns that the change log does not carry.
    """
    found = {column.name: column for column in table.columns}
    unknown = [no_column(table.name.quoted(), name, list(found)) for name in names if name not in found]
    if unknown:
        raise columns_not_there(unknown, of_spark=of_spark)
    named = list(names) or list(found)
    selected = tuple(found[name] for name in dict.fromkeys([*named, *table.key_names]))
    not_readable = _not_readable(table, selected)
    not_logged = _not_logged(selected) if follows else []
    problems = [*not_readable, *not_logged]
    if problems:
        rest = ", ".join(
            in_option(name) for name in named if found[name].readable and (found[name].logged or not follows)
        )
        # The key is read whatever is named.
        may_do_without = all(item.column.readable for item in table.key)
        leave_out = f'. {"Or leave" if not_readable else "Leave"} them out with .option("columns", "{rest}")'
        raise TableError(
            f"{table.name.quoted()} cannot be {'streamed' if follows else 'read'} whole: {'; '.join(problems)}"
            + (leave_out if may_do_without else "")
        )
    return selected


def _not_readable(table: TableDescription, selected: Sequence[ColumnDescription]) -> list[str]:
    names = [quoted(column.name) for column in selected if not column.readable]
    if not names:
        return []
    role = quoted(table.role)
    listed = ", ".join(names)
    return [f"the role may not read {listed} (GRANT SELECT ({listed}) ON {table.name.quoted()} TO {role})"]


def _not_logged(selected: Sequence[ColumnDescription]) -> list[str]:
    """One clause for each kind: a table may have such columns by the dozen."""
    names: dict[str, list[str]] = {}
    for column in selected:
        if not column.logged:
            names.setdefault(column.generated.name.lower(), []).append(repr(column.name))
    return [
        f"the change log does not carry the {kind} generated column{'s' * (len(of_it) > 1)} {', '.join(of_it)}"
        for kind, of_it in names.items()
    ]
