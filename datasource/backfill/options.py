"""Spark's string options as one frozen, validated value; the only place that knows option names.

Spark gives the keys in lower case. All problems are reported together, each with the option as the user knows it.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from backfill.errors import OptionsError


class StartupMode(enum.Enum):
    """What a new stream begins with."""

    INITIAL = "initial"
    LATEST = "latest"
    SNAPSHOT = "snapshot"


class OnTruncate(enum.Enum):
    """What a TRUNCATE of the table comes to."""

    FAIL = "fail"
    EMIT = "emit"
    IGNORE = "ignore"


class OnUnchangedToast(enum.Enum):
    """What an update comes to that leaves out a large unchanged value."""

    FAIL = "fail"
    MARK = "mark"


class Changelog(enum.Enum):
    """How much of a changed row is told."""

    LOGGED = "logged"
    FULL = "full"


class Envelope(enum.Enum):
    """What a change of the upstream stands for."""

    OPERATIONS = "operations"
    UPSERT = "upsert"


class OnExistingState(enum.Enum):
    """What a new checkpoint does with a state directory that already has progress."""

    FAIL = "fail"
    RESUME = "resume"
    RESTART = "restart"


class View(enum.Enum):
    """What can be read of a stream instead of its table."""

    PROGRESS = "progress"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Option:
    """One option as the user knows it; `parse` raises ValueError with what is allowed."""

    name: str
    default: str
    meaning: str
    parse: Callable[[str], Any] = str


def _choice(kind: type[enum.Enum]) -> Callable[[str], Any]:
    allowed = ", ".join(str(item.value) for item in kind)

    def parse(text: str) -> Any:
        try:
            return kind(text.strip().lower())
        except ValueError:
            raise ValueError(f"one of {allowed}") from None

    return parse


def _count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text.strip())
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return value

    return parse


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _bytes(text: str) -> int:
    matched = re.fullmatch(r"(\d+)\s*([kmg]?)b?", text.strip().lower())
    if matched is None or int(matched[1]) == 0:
        raise ValueError("a size such as 268435456, 256m or 1g")
    return int(matched[1]) * _UNITS[matched[2]]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip().strip('"') for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ValueError("distinct column names, separated by commas")
    return names


_TYPED_COLUMN: Final = re.compile(r'\s*("[^"]+"|\w+)\s+([A-Za-z]+\s*(?:\([^)]*\))?)\s*(?:,|$)')


def _types(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [(name.strip('"'), re.sub(r"\s+", "", kind).upper()) for name, kind in _TYPED_COLUMN.findall(text)]
    if not pairs or len(dict(pairs)) < len(pairs) or _TYPED_COLUMN.sub("", text).strip():
        raise ValueError("distinct columns and their types, such as: price DECIMAL(38,10), note STRING")
    return tuple(pairs)


def _slot_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]{1,63}", text):
        raise ValueError("1 to 63 lower-case letters, digits and underscores (what PostgreSQL allows)")
    return text


_SECRETS: Final = ("password", "secret")
"""How libpq's parameters with secrets end: password, sslpassword, oauth_client_secret."""


def _url(text: str) -> str:
    if text.startswith("jdbc:"):
        raise ValueError("a PostgreSQL URI or libpq connection string, without the leading jdbc:")
    if "://" in text:
        try:
            parts = urlsplit(text)
        except ValueError:
            # Its message may quote the part of the URI that has the password.
            raise ValueError("a URI such as postgresql://app@host:5432/shop") from None
        if parts.scheme not in ("postgresql", "postgres"):
            raise ValueError("a URI that begins with postgresql://")
        secret = bool(parts.password) or any(name.endswith(_SECRETS) for name, _ in parse_qsl(parts.query))
    elif "=" in text:
        secret = re.search(rf"({'|'.join(_SECRETS)})\s*=", text) is not None
    else:
        raise ValueError("a URI such as postgresql://app@host:5432/shop, or a libpq connection string")
    if secret:
        raise ValueError(
            "a URL without a password, because Spark shows URLs in plans and logs; give it with the option password, "
            "a libpq passfile or a service file"
        )
    return text


def _path(text: str) -> str:
    """Spark writes the location of a table of its catalog as file:/data/orders."""
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if "://" in text:
        if "@" in urlsplit(text).netloc and urlsplit(text).scheme in ("s3", "s3a", "gs", "http", "https"):
            raise ValueError("a URI without credentials, because Spark shows it; they come from the environment")
    elif not Path(text).is_absolute():
        raise ValueError("an absolute path, or a URI such as s3://bucket/orders")
    return text.rstrip("/") or "/"


MAX_INT: Final = 2**31 - 1

OPTIONS: Final = (
    Option("url", "", "Where the database is: a `postgresql://` URI or a libpq connection string, no password", _url),
    Option("dbtable", "", 'The table: `orders`, `public.orders`, `"My Schema"."Orders"`; goes with `url`'),
    Option("path", "", "In place of these two a Delta table: an absolute path, or a URI such as `s3://…`", _path),
    Option("keyColumns", "", "The columns that tell the rows of a Delta table apart; goes with `path`", _names),
    Option("user", "", "The role to connect as, where `url` has none"),
    Option("password", "", "The role's password; libpq's passfile, service file and environment work too"),
    Option("stateDir", "", "A folder of the driver for the stream's state; required for a stream"),
    Option("stagingDir", "", "Where chunks are staged: a path or URI all executors reach (default: in `stateDir`)"),
    Option("startupMode", "initial", "`initial`, `latest` or `snapshot`", _choice(StartupMode)),
    Option("columns", "", "The columns to carry, separated by commas (default: all)", _names),
    Option("filter", "", "For `spark.read`: a condition in SQL; the database gives only rows for which it holds"),
    Option("snapshotFilter", "", "For a stream: a condition in SQL; of the rows that are there, only these are read"),
    Option(
        "startingPosition",
        "",
        "For `spark.read`: the changes after this position, in place of the table; an LSN (`0/16B2D80`; needs "
        "`slotName`), a version of a Delta table, `earliest` or `latest`",
    ),
    Option("endingPosition", "", "For `spark.read`: the changes up to this position (default: `latest`)"),
    Option("customSchema", "", "Other types for columns: `STRING` for any, `DECIMAL(p,s)` for a numeric", _types),
    Option("numPartitions", "4", "How many readers a batch may use", _count(1, 10_000)),
    Option("vnodeCount", "256", "How many slices of the key space progress is kept for", _count(1, 65_536)),
    Option(
        "maxRowsPerTrigger", "2000000", "About how many rows a batch takes; a commit is never cut", _count(1, 1 << 40)
    ),
    Option("maxBytesPerTrigger", "1g", "About how many bytes of snapshot rows a batch takes", _bytes),
    Option("failOnDataLoss", "true", "Whether lost changes end the stream; if not, they are logged", _flag),
    Option("onTruncate", "fail", "`fail`, `emit` or `ignore` a TRUNCATE", _choice(OnTruncate)),
    Option(
        "changelog",
        "logged",
        "`logged`: of changed rows what the change log tells. `full`: all columns of rows before and after, also under "
        "`REPLICA IDENTITY DEFAULT`, from the last rows kept in `stateDir`",
        _choice(Changelog),
    ),
    Option(
        "envelope",
        "operations",
        "`upsert`: a change says only which row its key has now, if any; inserts, update pairs and deletes follow from "
        "the last rows kept in `stateDir`, and what changes nothing is left out",
        _choice(Envelope),
    ),
    Option("orderColumn", "", "With `envelope=upsert`: a row with less in this column than the last one comes late"),
    Option("stateMemory", "512m", "How much memory of the driver the last rows take at the most", _bytes),
    Option(
        "onUnchangedToast", "fail", "`fail`, or `mark` large values that the log left out", _choice(OnUnchangedToast)
    ),
    Option(
        "onExistingState",
        "fail",
        "A new checkpoint with a used `stateDir`: `fail`, `resume` from it, or `restart` the backfill",
        _choice(OnExistingState),
    ),
    Option("slotName", "", "The replication slot (default: made from the table's name)", _slot_name),
    Option("publicationName", "", "The publication (default: made from the table's name)"),
    Option("sessionInitStatement", "", "SQL that each session runs after it has connected"),
    Option(
        "view",
        "",
        "For `spark.read`: `progress` or `summary` of the stream with this `stateDir`, in place of the table",
        _choice(View),
    ),
)

_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}
# Spark adds these to what the user gave.
_SPARKS_OWN: Final = frozenset({"provider", "owner", "location", "is_managed_location", "external"})


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the algorithm itself needs to know."""

    startup_mode: StartupMode
    num_partitions: int
    vnode_count: int
    max_rows: int
    max_bytes: int
    on_truncate: OnTruncate
    on_existing_state: OnExistingState
    mark_unchanged: bool
    snapshot_filter: str = ""
    """A condition on the rows that the snapshot reads; the upstream evaluates it."""


@dataclass(frozen=True, slots=True)
class LastRowsOptions:
    """Whether the last row of every key is kept, how, and what for."""

    kept: bool
    upsert: bool
    order_column: str
    memory: int


@dataclass(frozen=True, slots=True)
class Options:
    """All options, validated. `password` is never part of a representation."""

    url: str
    dbtable: str
    path: str
    key_columns: tuple[str, ...]
    user: str
    password: str = field(repr=False)
    state_dir: str
    staging_dir: str
    columns: tuple[str, ...]
    filter: str
    starting_position: str
    ending_position: str
    custom_schema: tuple[tuple[str, str], ...]
    fail_on_data_loss: bool
    slot_name: str
    publication_name: str
    session_init_statement: str
    stream: StreamOptions
    last_rows: LastRowsOptions

    @property
    def has_metadata(self) -> bool:
        """Whether rows have the columns of a stream, and not only the table's."""
        return bool(self.state_dir or self.starting_position)


def parse(given: Mapping[str, str], *, streaming: bool = False) -> Options:
    """The options; OptionsError that lists every problem. A stream needs more of them than a look at the schema."""
    values, problems = _values(given)
    problems += _contradictions(values, streaming=streaming)
    _raise(problems)
    return _options(values)


def reads_changes(given: Mapping[str, str]) -> bool:
    """Whether the changes between two positions are asked for, and not the table."""
    return any(key.lower() == "startingposition" and value.strip() for key, value in given.items())


def parse_view(given: Mapping[str, str]) -> tuple[View, str] | None:
    """Which view is asked for and the `stateDir` it is of, which is all it needs; None where a table is read."""
    if not any(key.lower() == "view" and value.strip() for key, value in given.items()):
        return None
    values, problems = _values(given)
    if not values["statedir"]:
        problems.append("stateDir is required for a view: the folder of the stream to look at")
    if values["startingposition"] or values["endingposition"]:
        problems.append("view is of a stream's state; leave out startingPosition and endingPosition")
    problems += _folders(values)
    _raise(problems)
    return values["view"], values["statedir"]


def _raise(problems: list[str]) -> None:
    if problems:
        raise OptionsError("the backfill source cannot use its options:\n  - " + "\n  - ".join(problems))


def _values(given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Each option's value, as far as it is right, and what is wrong with the others."""
    problems = [_unknown(key) for key in given if key.lower() not in _BY_KEY and key.lower() not in _SPARKS_OWN]
    texts = {key.lower(): value for key, value in given.items()}
    values: dict[str, Any] = {}
    for key, option in _BY_KEY.items():
        text = texts.get(key, option.default)
        if not text.strip() and not option.default:
            values[key] = () if option.parse in (_names, _types) else ""
        else:
            try:
                values[key] = option.parse(text)
            except ValueError as error:
                shown = "cannot be used" if key in ("url", "password") or "@" in text else f"is {text!r}"
                problems.append(f"{option.name} {shown}; expected {error}")
    return values, problems


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _BY_KEY, n=1, cutoff=0.6)
    hint = f"; did you mean {_BY_KEY[near[0]].name}?" if near else f"; known are {', '.join(o.name for o in OPTIONS)}"
    return f"unknown option {key}{hint}"


def _contradictions(values: Mapping[str, Any], *, streaming: bool) -> list[str]:
    """What is wrong with values that are right each for itself; those that are not are missing here."""
    problems = _of_one_upstream(values)
    if streaming and not values["statedir"]:
        problems.append("stateDir is required for a stream: a folder of the driver that outlives the query")
    problems += _folders(values)
    if streaming and values["filter"]:
        problems.append(
            "filter is for spark.read: a stream carries all changes; leave it out, and use where(), or snapshotFilter "
            "for the rows that are there"
        )
    if values.get("startupmode") is StartupMode.LATEST and values["snapshotfilter"]:
        problems.append("startupMode=latest reads no snapshot; leave out snapshotFilter")
    if values.get("onunchangedtoast") is OnUnchangedToast.MARK and values["snapshotfilter"]:
        problems.append(
            "onUnchangedToast=mark stands for a value that came before, and with snapshotFilter it may never have "
            "come; leave out one of the two"
        )
    problems += _positions(values, streaming=streaming)
    if streaming and values.get("view"):
        problems.append("view is for spark.read; leave it out")
    if values.get("startupmode") is StartupMode.SNAPSHOT and (values.get("slotname") or values["publicationname"]):
        problems.append("startupMode=snapshot reads no change log; leave out slotName and publicationName")
    if _keeps_rows(values) and values.get("startupmode") in (StartupMode.LATEST, StartupMode.SNAPSHOT):
        problems.append(
            "changelog=full and envelope=upsert follow a table from its snapshot on; leave out startupMode, or them"
        )
    if values["ordercolumn"] and values.get("envelope") is not Envelope.UPSERT:
        problems.append("orderColumn is for envelope=upsert; set that, or leave orderColumn out")
    return problems


def _positions(values: Mapping[str, Any], *, streaming: bool) -> list[str]:
    starting, ending = values["startingposition"], values["endingposition"]
    if streaming:
        named = [name for name, value in (("startingPosition", starting), ("endingPosition", ending)) if value]
        return [f"{name} is for spark.read; a stream begins as startupMode says" for name in named]
    if not starting:
        return ["endingPosition needs startingPosition, from where the changes are read"] if ending else []
    problems = []
    if not values.get("path") and not values.get("slotname", "invalid"):
        problems.append("startingPosition needs slotName: the replication slot that holds the changes")
    if values["filter"]:
        problems.append("filter is for the table as it is now, not for changes; leave it out, and use where() instead")
    if values.get("failondataloss") is False:
        problems.append(
            "failOnDataLoss=false is for a stream; leave it out, and use startingPosition=earliest to read what is left"
        )
    if _keeps_rows(values):
        problems.append(
            "changelog=full and envelope=upsert take a stream's last rows; leave them out to read changes as logged"
        )
    return problems


_POSTGRESQL_ONLY: Final = ("user", "password", "customschema", "slotname", "publicationname", "sessioninitstatement")


def _of_one_upstream(values: Mapping[str, Any]) -> list[str]:
    """A database with `url` and `dbtable`, or a Delta table with `path` and `keyColumns`. Wrong values are missing."""
    url, dbtable, path, key = (values.get(name, "wrong") for name in ("url", "dbtable", "path", "keycolumns"))
    if path and (url or dbtable):
        return ["path is of a Delta table, and url and dbtable are of a database; give the one or the others"]
    if path:
        needless = [_BY_KEY[name].name for name in _POSTGRESQL_ONLY if values.get(name)]
        problems = [f"{', '.join(needless)} is for PostgreSQL; leave it out with path"] if needless else []
        return problems if key else [*problems, f"keyColumns is required with path: {_BY_KEY['keycolumns'].meaning}"]
    problems = [
        f"{name} is required: {_BY_KEY[name].meaning}" for name in ("url", "dbtable") if not values.get(name, 1)
    ]
    if len(problems) == 2:
        problems[0] += ". Or path, for a Delta table"
    if key:
        problems.append("keyColumns is for a Delta table; a table of PostgreSQL has a key of its own. Leave it out")
    return problems


def _folders(values: Mapping[str, Any]) -> list[str]:
    problems = []
    for key, name in (("statedir", "stateDir"), ("stagingdir", "stagingDir")):
        if values[key] and "://" not in values[key] and not Path(values[key]).is_absolute():
            problems.append(f"{name} is {values[key]!r}; expected an absolute path")
    if "://" in values["statedir"]:
        problems.append("stateDir is a URI; expected a local path of the driver (stagingDir may be a URI)")
    return problems


def _options(values: Mapping[str, Any]) -> Options:
    return Options(
        url=values["url"],
        dbtable=values["dbtable"],
        path=values["path"],
        key_columns=values["keycolumns"],
        user=values["user"],
        password=values["password"],
        state_dir=values["statedir"],
        staging_dir=values["stagingdir"] or (f"{values['statedir']}/staging" if values["statedir"] else ""),
        columns=values["columns"],
        filter=values["filter"],
        starting_position=values["startingposition"],
        ending_position=values["endingposition"],
        custom_schema=values["customschema"],
        fail_on_data_loss=values["failondataloss"],
        slot_name=values["slotname"],
        publication_name=values["publicationname"],
        session_init_statement=values["sessioninitstatement"],
        stream=StreamOptions(
            startup_mode=values["startupmode"],
            num_partitions=values["numpartitions"],
            vnode_count=values["vnodecount"],
            max_rows=values["maxrowspertrigger"],
            max_bytes=values["maxbytespertrigger"],
            on_truncate=values["ontruncate"],
            on_existing_state=values["onexistingstate"],
            mark_unchanged=values["onunchangedtoast"] is OnUnchangedToast.MARK,
            snapshot_filter=values["snapshotfilter"].strip(),
        ),
        last_rows=LastRowsOptions(
            kept=_keeps_rows(values),
            upsert=values["envelope"] is Envelope.UPSERT,
            order_column=values["ordercolumn"],
            memory=values["statememory"],
        ),
    )


def _keeps_rows(values: Mapping[str, Any]) -> bool:
    return values.get("changelog") is Changelog.FULL or values.get("envelope") is Envelope.UPSERT
