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
    BOOL_ARRAY = 1000
    INT2_ARRAY = 1005
    INT4_ARRAY = 1007
    INT8_ARRAY = 1016
    FLOAT4_ARRAY = 1021
    FLOAT8_ARRAY = 1022
    BPCHAR = 1042
    VARCHAR = 1043
    DATE = 1082
    TIME = 1083
    TIMESTAMP = 1114
    TIMESTAMP_ARRAY = 1115
    DATE_ARRAY = 1182
    TIMESTAMPTZ = 1184
    TIMESTAMPTZ_ARRAY = 1185
    NUMERIC = 1700
    UUID = 2950
