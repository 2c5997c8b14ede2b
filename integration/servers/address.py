"""Connection strings, always as URIs: what libpq, JDBC's users and Spark options have in common."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict


def as_uri(conninfo: str, **changes: str | None) -> str:
    """The URI that says the same as `conninfo` with some parameters replaced, or removed by None.

    >>> as_uri("host=127.0.0.1 port=5433 user=me password=x", dbname="shop", password=None)
    'postgresql://me@127.0.0.1:5433/shop'
    """
    known = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    known |= {name: value for name, value in changes.items() if value is not None}
    for name in [name for name, value in changes.items() if value is None]:
        known.pop(name, None)
    user, password = known.pop("user", ""), known.pop("password", None)
    login = quote(user, safe="") + ("" if password is None else ":" + quote(password, safe=""))
    host, database = known.pop("host", ""), known.pop("dbname", "")
    if host.startswith("/"):  # a socket's folder cannot stand where a host name does
        place, known["host"] = "", host
    else:
        place = f"[{host}]" if ":" in host else host
        place += f":{known.pop('port')}" if "port" in known else ""
    rest = f"?{urlencode(known, quote_via=quote)}" if known else ""
    return f"postgresql://{login}{'@' if login else ''}{place}/{quote(database, safe='')}{rest}"
