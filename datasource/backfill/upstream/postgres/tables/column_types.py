"""Types as the catalog knows them, resolved down to what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from psycopg.rows import class_row

from backfill.upstream.postgres.description import QualifiedName, TypeDescription
from backfill.upstream.postgres.session.connection import Session

# The polymorphic types an output function may be declared with: record, anyarray, anyenum, anyrange, anymultirange.
_POLYMORPHIC: Final = frozenset({2249, 2277, 3500, 3831, 4537})
_ARRAY_OUT: Final = 751  # the output function of arrays proper, but not of int2vector and oidvector: array literals

_TYPES: Final = """
    SELECT t.oid::int8 AS oid, n.nspname AS schema, t.typname AS name, t.typtype::text AS kind,
           t.typbasetype::int8 AS base_oid, t.typtypmod AS base_typmod,
           t.typelem::int8 AS element_oid, t.typdelim::text AS delimiter,
           p.oid::int8 AS output_oid, pn.nspname AS output_schema, p.proname AS output_name,
           p.proargtypes[0]::int8 AS output_takes
    FROM pg_catalog.pg_type t
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    JOIN pg_catalog.pg_proc p ON p.oid = t.typoutput
    JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
    WHERE t.oid = ANY (%s::oid[])
"""


@dataclass(frozen=True, slots=True)
class TypeRow:
    """A row of pg_type, with its output function."""

    oid: int
    schema: str
    name: str
    kind: str
    base_oid: int
    base_typmod: int
    element_oid: int
    delimiter: str
    output_oid: int
    output_schema: str
    output_name: str
    output_takes: int

    @property
    def is_array(self) -> bool:
        return self.element_oid != 0 and self.output_oid == _ARRAY_OUT

    @property
    def refers_to(self) -> int:
        return self.base_oid if self.kind == "d" else self.element_oid if self.is_array else 0


def read_types(session: Session, oids: Iterable[int]) -> dict[int, TypeRow]:
    """The rows of these types and of all they are made of: one query for each level."""
    known: dict[int, TypeRow] = {}
    wanted = set(oids)
    while wanted:
        with session.cursor(row_factory=class_row(TypeRow)) as cursor:
            found = cursor.execute(_TYPES, [sorted(wanted)]).fetchall()
        known.update((row.oid, row) for row in found)
        wanted = {row.refers_to for row in found if row.refers_to} - known.keys()
    return known


def resolve(types: Mapping[int, TypeRow], oid: int, typmod: int) -> TypeDescription:
    """What a column of this type stores. As in the server's getBaseTypeAndTypmod, a domain's own modifier holds."""
    row = types[oid]
    if row.kind == "d":
        # A domain keeps the output function of its base type, so nothing is lost by looking through it. But SQL does
        # not find enum_out(anyenum) for a domain.
        base = resolve(types, row.base_oid, row.base_typmod)
        return replace(base, output=None) if row.output_takes in _POLYMORPHIC else base
    described = TypeDescription(
        oid=row.oid,
        name=QualifiedName(row.schema, row.name),
        kind=row.kind,
        typmod=typmod,
        output=_callable_output(row),
        delimiter=row.delimiter,
        element=None,
    )
    # The modifier of an array is that of its elements.
    return replace(described, element=resolve(types, row.element_oid, typmod)) if row.is_array else described


def _callable_output(row: TypeRow) -> QualifiedName | None:
    # Some types borrow the output function of another one (refcursor that of text), to which SQL may know no cast.
    # And an extension's takes rights, to its schema and to itself, which reading the column does not.
    own = row.output_takes == row.oid or row.output_takes in _POLYMORPHIC
    return QualifiedName(row.output_schema, row.output_name) if own and row.output_schema == "pg_catalog" else None
