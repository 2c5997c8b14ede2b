"""The values of options as people write them: what each kind of text means, and what is expected instead.

Each function gives the value of a text, or raises ValueError with what is expected.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit


def is_characters(text: str) -> bool:
    """Whether the text is characters only. Python turns an argument that is not in its process's encoding into
    surrogates.
    """
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def require_readable(text: str) -> None:
    if not is_characters(text):
        raise ValueError("text in UTF-8, and a locale that says so, such as LC_ALL=C.UTF-8")


Choice = TypeVar("Choice", bound=enum.Enum)


def choice(kind: type[Choice]) -> Callable[[str], Choice]:
    allowed = ", ".join(str(item.value) for item in kind)

    def parse(text: str) -> Choice:
        try:
            return kind(text.strip().lower())
        except ValueError:
            raise ValueError(f"one of {allowed}") from None

    return parse


_DIGITS: Final = "[0-9]{1,18}"
"""As many digits as any option takes. Python's `int` takes more than digits, and its error for too many is no help."""


def whole(text: str) -> int | None:
    """The number that this text is, in nothing but digits; None where it is none, or longer than any option's."""
    return int(text) if re.fullmatch(_DIGITS, text) else None


def count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = whole(text.strip())
        if value is None or not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return value

    return parse


def flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


_MOST_BYTES: Final = 1 << 50
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size(text: str) -> int:
    matched = re.fullmatch(rf"({_DIGITS})\s*([kmg]?)b?", text.strip().lower())
    if matched is None or not 0 < int(matched[1]) * _UNITS[matched[2]] <= _MOST_BYTES:
        raise ValueError("a size such as 268435456, 256m or 1g, of 1048576g at the most")
    return int(matched[1]) * _UNITS[matched[2]]


def memory(text: str) -> int:
    """At least what DuckDB needs to write a file with long texts in it (`backfill_state.upsert.long_cells`)."""
    value = size(text)
    if value < 256 << 20:
        raise ValueError("256m or more")
    return value


_QUOTED: Final = r'"(?:[^"]|"")+"'
_COLUMN: Final = re.compile(rf'\s*({_QUOTED}|[^",]*[^",\s])\s*(,|$)')


def column_names(text: str) -> tuple[str, ...]:
    """Names, separated by commas. A name with commas or quotes in it stands in double quotes, as in SQL."""
    names: list[str] = []
    at, more = 0, True
    while more:
        found = _COLUMN.match(text, at)
        if found is None:
            break
        names.append(unquoted(found[1]))
        at, more = found.end(), bool(found[2])
    if more or len(set(names)) != len(names):
        raise ValueError("distinct column names, separated by commas")
    return tuple(names)


def unquoted(name: str) -> str:
    """The name that stands in double quotes, or by itself."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


METADATA_COLUMNS: Final = ("_change_type", "_is_snapshot", "_commit_version", "_commit_timestamp", "_sequence")
"""The columns that a stream's rows have beside the table's, in this order."""


def metadata_columns(text: str) -> tuple[str, ...]:
    """The columns that `all`, `none` or a list of some stands for, in the order in which rows have them."""
    word = text.strip().lower()
    if word in ("all", "none"):
        return METADATA_COLUMNS if word == "all" else ()
    names = [name.strip() for name in word.split(",")]
    if not set(names) <= set(METADATA_COLUMNS) or len(set(names)) != len(names):
        raise ValueError(f"all, none, or some of {', '.join(METADATA_COLUMNS)}, separated by commas")
    return tuple(name for name in METADATA_COLUMNS if name in names)


_TYPED_COLUMN: Final = re.compile(rf"\s*({_QUOTED}|\w+)\s+([A-Za-z]+\s*(?:\([^)]*\))?)\s*(?:,|$)")


def column_types(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [(unquoted(name), re.sub(r"\s+", "", kind).upper()) for name, kind in _TYPED_COLUMN.findall(text)]
    if not pairs or len(dict(pairs)) < len(pairs) or _TYPED_COLUMN.sub("", text).strip():
        raise ValueError('distinct columns and their types, such as: price DECIMAL(38,10), "my note" STRING')
    return tuple(pairs)


def slot_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]{1,63}", text):
        raise ValueError("1 to 63 lower-case letters, digits and underscores (what PostgreSQL allows)")
    return text


_SECRETS: Final = ("password", "secret", "scram_client_key", "scram_server_key")
"""How the names of libpq's parameters with secrets end: password, sslpassword, oauth_client_secret, …"""


def url(text: str) -> str:
    text = text.strip()  # libpq would take the newline at the end of a file for a part of the database's name.
    if text.startswith("jdbc:"):
        raise ValueError("a PostgreSQL URI or libpq connection string, without the leading jdbc:")
    if scheme := re.match(r"([\w+.-]*)://", text):
        # Not split by Python, which refuses several hosts where one is an IPv6 address.
        if scheme[1] not in ("postgresql", "postgres"):
            raise ValueError("a URI that begins with postgresql://")
        if text.count("[") != text.count("]"):
            raise ValueError("a URI such as postgresql://app@host:5432/shop")
        secret = _has_password(text.partition("://")[2])
    elif "=" in text:
        secret = re.search(rf"({'|'.join(_SECRETS)})\s*=", text) is not None
    else:
        raise ValueError("a URI such as postgresql://app@host:5432/shop, or a libpq connection string")
    if secret:
        raise ValueError(
            "a URL without a password, because Spark shows URLs in plans and logs; give it in a libpq passfile, a "
            "service file or PGPASSWORD, or to read and readStream with the option password"
        )
    return text


def _has_password(after_scheme: str) -> bool:
    """Whether the URI has a password, by libpq's rules: it stands before the first @, unless a / comes before that; #
    and ? are letters of a password. Blanks around the name of a parameter do not count.
    """
    named, at, rest = after_scheme.partition("@")
    if not at or "/" in named:
        named, rest = "", after_scheme
    path, _, query = rest.partition("?")
    # libpq takes no text with a / for a password; its error then quotes it as the port.
    misread = ":" in path and "@" in path.partition(":")[2]
    names = [name.strip() for name, _ in parse_qsl(query)]
    return named.partition(":")[2] != "" or misread or any(name.endswith(_SECRETS) for name in names)


def as_refused(text: str, *, secret: bool = False) -> str:
    """How an error shows a value that is refused: not at all where it may hold a secret, as a URI may anywhere."""
    return "cannot be used" if secret or "@" in text or "://" in text else f"is {text!r}"


def place(text: str) -> str:
    """The place of a Delta table, as a path or URI.

    Spark writes that of a table of its catalog as file:/data/orders, with a blank as %20.
    """
    if text.startswith("file:"):
        text = "/" + unquote(text.removeprefix("file:")).lstrip("/")
    if "://" in text:
        _require_no_credentials(text)
    elif not Path(text).is_absolute():
        raise ValueError("an absolute path, or a URI such as s3://bucket/orders")
    elif re.search(r"%[0-9A-Fa-f]{2}", text):
        raise ValueError("a path without % before two hexadecimal digits, which deltalake takes for another letter")
    return text.rstrip("/") or "/"


_OPENED: Final = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""The schemes that `pyarrow.fs.FileSystem.from_uri` knows, in lower case; beside those that it leaves to fsspec."""

_HADOOP: Final = {"s3a": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss"}
"""Hadoop's names for some of them, each with that of `pyarrow.fs`."""

_NOT_IN_URIS: Final = re.compile(r"[^!-~]|[\"#<>\\^`{|}]|%(?![0-9A-Fa-f]{2})|^file:.*\?")
"""What a URI may have only in the form %20 (RFC 3986, section 2), and characters from which on `pyarrow.fs` leaves out
the rest: #, and ? in a local path (in the URI of an object store, options follow it).
"""


def staging_place(text: str) -> str:
    if "://" in text:
        _require_no_credentials(text)
        scheme = text.partition("://")[0]
        if scheme in _HADOOP:
            raise ValueError(f"{_HADOOP[scheme]}:// in place of {scheme}://, which pyarrow.fs does not know")
        if scheme not in _OPENED and not re.fullmatch(r"fsspec\+.+|hf", scheme):
            schemes = ", ".join(f"{known}://" for known in _OPENED)
            raise ValueError(f"an absolute path, or a URI that pyarrow.fs opens: {schemes}")
        if scheme in _OPENED and _NOT_IN_URIS.search(text):
            raise ValueError(
                "a URI, in which a blank is %20, # is %23, and so on for what else no path in a URI may have"
            )
    return text


_KEYS: Final = (*_SECRETS, "key", "token", "sig")
"""How the names of object stores' parameters with secrets end: secret_key, session_token, a shared access signature's
sig.
"""


def _require_no_credentials(uri: str) -> None:
    """Raises ValueError for a URI with credentials. An Azure container or an HDFS user before the @ is no secret."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise ValueError("a URI such as s3://bucket/orders") from None
    user = parts.netloc.rpartition("@")[0]
    keyed = parts.scheme in ("s3", "s3a", "gs", "http", "https")
    # A key of AWS may have a /, at which the host would end.
    given = user not in ("", "anonymous") or re.match(r"[^@]*:[^@]*@", uri.partition("://")[2])
    if (keyed and given) or ":" in user or any(name.lower().endswith(_KEYS) for name, _ in parse_qsl(parts.query)):
        raise ValueError("a URI without credentials, because Spark shows it; they come from the environment")
