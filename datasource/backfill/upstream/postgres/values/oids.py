"""Types of PostgreSQL that are treated by name, as the server numbers them (its catalog file pg_type.dat)."""

from __future__ import annotations

from enum import IntEnum


class Oid(IntEnum):
    """These never change: PostgreSQL gives out the numbers below 10,000 by hand."""

    BOOL = 16
    BYTEA = 17
    NAME = 19
    INT8 = 20
    INT2 = 21
    INT4 = 23
    TEXT = 25
    OID = 26
    FLOAT4 = 700
    FLOAT8 = 701
    MONEY = 790
    BPCHAR = 1042
    VARCHAR = 1043
    DATE = 1082
    TIME = 1083
    TIMESTAMP = 1114
    TIMESTAMPTZ = 1184
    NUMERIC = 1700
    UUID = 2950
