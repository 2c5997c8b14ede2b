"""Values of PostgreSQL's types as text that casts to them: the extremes, and as many random ones as one likes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from random import Random
from typing import TypeAlias

Make: TypeAlias = Callable[[Random], str]


@dataclass(frozen=True)
class Case:
    """A type; values of it that are known for trouble; a maker of random ones; what has to be there first.

    `since` is the first version that has the type or its special values.
    """

    type: str
    special: Sequence[str]
    random: Make | None = None
    setup: str = ""
    since: int = 0

    def values(self, rng: Random, count: int) -> list[str | None]:
        made = [self.random(rng) for _ in range(count)] if self.random else []
        values: list[str | None] = [None, *self.special, *made, None]
        rng.shuffle(values)
        return values


ALPHABET = "aBcZ09%_ -'\"\\{}(),;\t\n\r\v\x01\x7f\u00e9\u00df\u20ac\U0001f600NULL"


def text(rng: Random) -> str:
    return "".join(rng.choices(ALPHABET, k=rng.randrange(12)))


def word(rng: Random) -> str:
    return "".join(rng.choices("aBcZ09", k=rng.randrange(1, 8)))


def integer(bits: int) -> Make:
    return lambda rng: str(rng.randrange(-(2 ** (rng.randrange(bits))), 2 ** (rng.randrange(bits))))


def number(digits: int, scale: int) -> Make:
    def make(rng: Random) -> str:
        whole = rng.randrange(10 ** rng.randrange(1, digits - scale + 1)) if digits > scale else 0
        fraction = f".{rng.randrange(10**scale):0{scale}}" if scale else ""
        return f"{rng.choice(['', '-'])}{whole}{fraction}"

    return make


def double(rng: Random) -> str:
    return repr(rng.uniform(-1, 1) * 10.0 ** rng.randrange(-30, 30))


def moment(rng: Random) -> datetime:
    return datetime(1, 1, 1) + timedelta(microseconds=rng.randrange(315_537_897_600_000_000))  # noqa: DTZ001


def timestamp(rng: Random) -> str:
    return moment(rng).replace(microsecond=rng.choice([0, 1, 500_000, 123_456, 999_999])).isoformat(" ")


def hexed(rng: Random) -> str:
    return "\\x" + rng.randbytes(rng.randrange(20)).hex()


def interval(rng: Random) -> str:
    parts = (rng.randrange(-500, 500) for _ in range(6))
    return "{} years {} mons {} days {} hours {} mins {}.5 secs".format(*parts)


def document(rng: Random) -> str:
    return json.dumps({word(rng): [text(rng), rng.random(), None, {"a": rng.randrange(10**6)}]})


def points(count: int, shape: str) -> Make:
    return lambda rng: shape.format(*(rng.randrange(-999, 999) / 8 for _ in range(count)))


def array(of: Make) -> Make:
    """An array literal with everything quoted: the server writes it its own way."""

    def make(rng: Random) -> str:
        return "{" + ",".join(element(rng) for _ in range(rng.randrange(5))) + "}"

    def element(rng: Random) -> str:
        if rng.random() < 0.2:
            return "NULL"
        return '"' + of(rng).replace("\\", "\\\\").replace('"', '\\"') + '"'

    return make


def bits(rng: Random) -> str:
    return "".join(rng.choices("01", k=rng.randrange(1, 40)))


DATES = ["0001-01-01", "9999-12-31", "1970-01-01", "1969-12-31", "2000-02-29", "1582-10-04", "1582-10-15"]
TIMESTAMPS = [
    *("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999", "2024-01-01 12:34:56.789"),
    *("1900-01-01 00:00:00.000001", "2000-01-01 00:00:00", "1883-11-18 12:00:00.5"),
]
FLOATS = ["NaN", "Infinity", "-Infinity", "-0", "0", "1", "1e15", "123456789012345", "0.1", "1e-5", "1e6"]
ARRAYS = ["{}", "{NULL}", "{NULL,NULL}"]
TEXTS = [
    "",
    " ",
    "%s",
    "100 % sure it's \\ {}",
    "NULL",
    "null",
    "\\",
    '"',
    "{}",
    "\\N",
    "a\\b",
    "é\u0301",
    "\U0001f600",
    "\x01",
    "x" * 3000,
]
MOOD = "CREATE TYPE mood AS ENUM ('sad', 'ok', 'a,b', '\"q\"', 'NULL')"
MOODS = ["sad", "ok", "a,b", '"q"', "NULL"]
PAIR = "CREATE TYPE pair AS (a int4, b text)"
PAIRS = ["(1,x)", "(,)", '(,"")', '(-5,"a ""quoted"" \\\\ one")', '(7,"{}")']

SCALARS = (
    Case("bool", ["true", "false"]),
    Case("int2", ["-32768", "32767", "0"], integer(16)),
    Case("int4", ["-2147483648", "2147483647", "0"], integer(32)),
    Case("int8", ["-9223372036854775808", "9223372036854775807", "0"], integer(64)),
    Case("oid", ["0", "1", "2147483648", "4294967295"]),
    Case("float4", [*FLOATS, "3.4028235e38", "1e-45", "1.17549435e-38", "16777217"], double),
    Case("float8", [*FLOATS, "1.7976931348623157e308", "5e-324", "0.30000000000000004"], double),
    Case("numeric", ["NaN", "0", "0.00", "1.0", "1.00", "1e-50", "9" * 60 + ".5", "1e1000"], number(30, 12)),
    Case("numeric", ["Infinity", "-Infinity"]),
    Case("numeric(12,2)", ["9999999999.99", "-9999999999.99", "0", "-0.01", "1.5"], number(12, 2)),
    Case("numeric(38,10)", ["9" * 28 + "." + "9" * 10, "0.0000000001"], number(38, 10)),
    Case("numeric(38,38)", ["0." + "9" * 38, "-0." + "0" * 37 + "1", "0"], number(38, 38)),
    Case("numeric(5)", ["99999", "-1"], number(5, 0)),
    Case("numeric(2,5)", ["0.00099", "-0.00001", "0"], since=150000),
    Case("numeric(2,-3)", ["99000", "-1000", "0", "1499"], since=150000),
    Case("numeric(50,10)", ["9" * 40 + "." + "9" * 10, "1.5", "NaN"], number(50, 10)),
    Case("text", TEXTS, text),
    Case("varchar(20)", [each[:20] for each in TEXTS], text),
    Case("char(14)", [each[:14] for each in TEXTS], text),
    Case("bpchar", ["a", "a  ", ""], text),
    Case('"char"', ["", "a", "~", '"', "\\"]),
    Case("name", ["", "a" * 63, 'Some "Name"'], text),
    Case("bytea", ["\\x", "\\x00", "\\xff", "\\x5c78", "\\x" + "ab" * 3000], hexed),
    Case("date", DATES, lambda rng: moment(rng).date().isoformat()),
    Case("timestamp", TIMESTAMPS, timestamp),
    Case("timestamp(0)", TIMESTAMPS[3:], lambda rng: moment(rng).replace(year=2020).isoformat()),
    Case("timestamptz", [f"{each}+00" for each in TIMESTAMPS], lambda rng: timestamp(rng) + "+00"),
    Case("time", ["00:00:00", "23:59:59.999999", "12:00:00.1", "24:00:00"], lambda rng: moment(rng).time().isoformat()),
    Case("timetz", ["00:00:00+15:59", "24:00:00-12", "23:59:59.999999+05:30:15"]),
    Case("interval", ["0", "-1 mon +1 day -00:00:01", "178000000 years", "1.000001 secs"], interval),
    Case("interval", ["infinity", "-infinity"], since=170000),
    Case("uuid", ["0" * 32, "f" * 32], lambda rng: str(uuid.UUID(int=rng.getrandbits(128)))),
)

OTHERS = (
    Case("json", ["null", "1", '"a"', '{"a" :  1, "a":2}', "[]", "1.00"], document),
    Case("jsonb", ["null", "1", '"a"', '{"a" :  1, "a":2}', "[]", "1.00"], document),
    Case("jsonpath", ["$.a[*] ? (@ > 1)"]),
    Case("mood", MOODS, setup=MOOD),
    Case("inet", ["10.0.0.1", "10.0.0.1/8", "::1", "::/0"], lambda rng: str(IPv4Address(rng.getrandbits(32)))),
    Case("cidr", ["10.0.0.0/8", "::/0"], lambda rng: str(IPv6Address(rng.getrandbits(128)))),
    Case("macaddr", ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"]),
    Case("macaddr8", ["00:00:00:00:00:00:00:01", "ff:ff:ff:ff:ff:ff:ff:ff"]),
    Case("bit(5)", ["00000", "10101"]),
    Case("bit varying", ["", "1", "0"], bits),
    Case("money", ["$0.00", "-$92,233,720,368,547,758.08", "$92,233,720,368,547,758.07"]),
    Case("point", ["(0,-0)", "(Infinity,NaN)", "(1e-300,0.1)"], points(2, "({},{})")),
    Case("line", ["{1,2,3}"]),
    Case("lseg", ["[(0,0),(1,1)]"], points(4, "[({},{}),({},{})]")),
    Case("box", ["(1,1),(0,0)"], points(4, "({},{}),({},{})")),
    Case("path", ["[(0,0),(1,1)]", "((0,0),(1,1))"]),
    Case("polygon", ["((0,0),(1,1),(2,0))"]),
    Case("circle", ["<(0,0),1>"]),
    Case("int4range", ["empty", "[1,5)", "(,)", "[1,1]"]),
    Case("numrange", ["[1.0,1.00]", "(,5.5]"]),
    Case("tstzrange", ["[2024-01-01 00:00+02,infinity)", "(,)"]),
    Case("int4multirange", ["{}", "{[1,2),[5,9)}"]),
    Case("tsvector", ["'a':1A 'it''s':2", ""]),
    Case("tsquery", ["'a' & !'b' | 'c':*"]),
    Case("pg_lsn", ["0/0", "FFFFFFFF/FFFFFFFF"]),
    Case("xid8", ["0", "18446744073709551615"]),
    Case("xid", ["0", "4294967295"]),
    Case("oid8", ["0", "18446744073709551615"], since=190000),
    Case("regdatabase", ["postgres", "0"], since=190000),
    Case("tid", ["(0,1)", "(4294967295,65535)"]),
    Case("regclass", ["pg_class", "t"]),
    Case("refcursor", ["", "c"]),
    Case("int2vector", ["", "1 2 -3"]),
    Case("oidvector", ["", "1 4294967295"]),
    Case("xml", ["<a/>", "<?xml version='1.0' encoding='latin1'?><a>é</a>", "text"]),
    Case("citext", TEXTS, text, "CREATE EXTENSION citext"),
    Case("hstore", ["", 'a=>1, "b c"=>NULL'], None, "CREATE EXTENSION hstore"),
    Case("pair", PAIRS, setup=PAIR),
)

DOMAINS = (
    Case("d", ["1", "5"], setup="CREATE DOMAIN d AS int4 CHECK (VALUE > 0)"),
    Case("d2", ["1.25"], setup="CREATE DOMAIN d AS numeric(12,2); CREATE DOMAIN d2 AS d DEFAULT 0"),
    Case("d", TEXTS, text, "CREATE DOMAIN d AS text"),
    Case("d", ["12"], setup="CREATE DOMAIN d AS oid"),
    Case("d", DATES, setup="CREATE DOMAIN d AS date"),
    Case("d", MOODS, setup=f"{MOOD}; CREATE DOMAIN d AS mood"),
    Case("d", PAIRS, setup=f"{PAIR}; CREATE DOMAIN d AS pair"),
    Case("d", ["[1,5)"], setup="CREATE DOMAIN d AS int4range"),
    Case("d", ["{1,2}", "{}", "{NULL,3}"], setup="CREATE DOMAIN d AS int4[]"),
    Case("d[]", ["{1,2,NULL}", "{}"], setup="CREATE DOMAIN d AS int4"),
    Case("d[]", ['{"{1,2}","{}"}'], setup="CREATE DOMAIN d AS int4[]"),
)

LISTS = (
    Case("bool[]", [*ARRAYS, "{t,f,NULL}"]),
    Case("int2[]", ARRAYS, array(integer(15))),
    Case("int4[]", ARRAYS, array(integer(31))),
    Case("int8[]", [*ARRAYS, "{-9223372036854775808}"], array(integer(63))),
    Case("oid[]", [*ARRAYS, "{4294967295}"]),
    Case("float4[]", [*ARRAYS, "{NaN,-0,Infinity}"], array(double)),
    Case("float8[]", [*ARRAYS, "{NaN,-0,Infinity}", f"{{{','.join(['0.5', 'NULL'] * 500)}}}"], array(double)),
    Case("numeric(12,2)[]", ARRAYS, array(number(12, 2))),
    Case("numeric[]", [*ARRAYS, "{NaN,1.00}"], array(number(30, 12))),
    Case("text[]", [*ARRAYS, '{""}', '{"NULL",null,"null"}', '{"{","}",",","\\"","\\\\"}'], array(text)),
    Case("varchar(20)[]", ARRAYS, array(text)),
    Case("char(14)[]", ARRAYS, array(text)),
    Case("bytea[]", [*ARRAYS, '{"\\\\x"}'], array(hexed)),
    Case("date[]", ARRAYS, array(lambda rng: moment(rng).date().isoformat())),
    Case("timestamp[]", ARRAYS, array(timestamp)),
    Case("timestamptz[]", ARRAYS, array(lambda rng: timestamp(rng) + "+00")),
    Case("time[]", ARRAYS, array(lambda rng: moment(rng).time().isoformat())),
    Case("uuid[]", ARRAYS, array(lambda rng: str(uuid.UUID(int=rng.getrandbits(128))))),
    Case("json[]", ARRAYS, array(document)),
    Case("interval[]", ARRAYS, array(interval)),
    Case("mood[]", [*ARRAYS, '{"a,b","\\"q\\""}'], array(lambda rng: rng.choice(MOODS)), MOOD),
    Case("pair[]", [*ARRAYS], array(lambda rng: rng.choice(PAIRS)), PAIR),
    Case("box[]", ["{}", "{(1,1),(0,0);(3,3),(2,2)}", "{(1,1),(0,0);NULL}"]),
)

BEYOND = (
    Case("date", ["infinity", "-infinity", "4713-01-01 BC", "0001-12-31 BC", "10000-01-01", "5874897-12-31"]),
    Case(
        "timestamp", ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "10000-01-01", "294276-12-31 23:59:59.999999"]
    ),
    Case("timestamptz", ["infinity", "-infinity", "4714-11-24 00:00:00+00 BC", "10000-01-01 00:00:00+00"]),
    Case("numeric(12,2)", ["NaN"]),
    Case("numeric(38,38)", ["NaN"]),
    Case("int4[]", ["{{1,2},{3,4}}", "[0:1]={1,2}", "[2:2]={1}", "{{1}}"]),
    Case("text[]", ['{{"{"},{"}"}}', "[-1:-1]={a}"]),
    Case("date[]", ["{2024-01-01,infinity}"]),
    Case("float8[]", ["{{NaN,1},{2,3}}", "[2:3]={NULL,1}"]),
    Case("timestamptz[]", ["{2024-01-01 00:00:00+00,-infinity}", "{NULL,10000-01-01 00:00:00+00}"]),
    Case("box[]", ["{{(1,1),(0,0)};{(3,3),(2,2)}}"]),
)
"""Values that PostgreSQL has and the Arrow type has not."""
