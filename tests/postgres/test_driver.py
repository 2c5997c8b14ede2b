"""Which releases of the ADBC driver are used, and where connectors lead and what they show."""

from __future__ import annotations

from pathlib import Path

import adbc_driver_postgresql
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from backfill.errors import OptionsError
from backfill.upstream.postgres.session import environment
from backfill.upstream.postgres.session.arrow_session import require_driver
from backfill.upstream.postgres.session.connection import Connector

SECRET = "hunter2-is-secret"  # noqa: S105 - a password for tests


@pytest.mark.parametrize(
    "installed",
    ["1.13.0", "1.13.1", "1.14.0.dev3", "1.14rc1", "2.0.0", "0+unknown", adbc_driver_postgresql.__version__],
)
def test_a_driver_that_writes_what_it_is_given_is_used(installed: str) -> None:
    require_driver(installed)


def test_a_connector_shows_nothing_that_may_be_secret() -> None:
    connector = Connector.of("host=db", user="app", password=SECRET, init_statement=f"SET app.token = '{SECRET}'")
    assert SECRET in connector.conninfo
    assert SECRET in connector.init_statement
    assert SECRET not in repr(connector)


@pytest.mark.parametrize("installed", ["0.11.0", "1.8.0", "1.12.0"])
def test_one_that_does_not_is_refused_before_anything_is_opened(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adbc_driver_postgresql, "__version__", installed)
    session = Connector("host=nowhere.invalid").arrow_session()
    with pytest.raises(OptionsError, match=rf"is {installed}, which .*; expected 1\.13 or newer"), session:
        pass


def test_executors_go_where_the_driver_goes_whatever_is_in_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGHOST": "db", "PGPORT": "5433", "PGDATABASE": "shop", "PGUSER": "app"}.items():
        monkeypatch.setenv(name, value)
    found = conninfo_to_dict(Connector.of("dbname=other").conninfo)
    assert [found[name] for name in ("host", "port", "dbname", "user")] == ["db", "5433", "other", "app"]


def service(monkeypatch: pytest.MonkeyPatch, folder: Path, *entries: str) -> None:
    """Defines the service `shop` by these entries."""
    file = folder / "services"
    file.write_text("\n".join(["[shop]", *entries, ""]))
    monkeypatch.setenv("PGSERVICEFILE", str(file))


def test_executors_go_where_the_service_of_the_drivers_environment_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service(monkeypatch, tmp_path, "host=db", "port=5433", "user=app", f"password={SECRET}", "sslmode=verify-full")
    monkeypatch.setenv("PGSERVICE", "shop")
    monkeypatch.setenv("PGHOST", "elsewhere")  # The service's host counts before PGHOST.
    monkeypatch.setenv("PGSSLMODE", "disable")
    connector = Connector.of("dbname=other")
    monkeypatch.delenv("PGSERVICE")
    found = conninfo_to_dict(connector.here())
    assert [found[name] for name in ("host", "port", "dbname", "user")] == ["db", "5433", "other", "app"]
    assert found["sslmode"] == "verify-full"
    assert SECRET not in connector.conninfo


def test_a_service_is_looked_up_once_for_both_drivers_and_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service(monkeypatch, tmp_path, "host=db", "user=app", f"password={SECRET}", "sslmode=require", "replication=true")
    connector = Connector.of("service=shop", user="other")
    assert SECRET not in connector.conninfo
    found = conninfo_to_dict(connector.here())
    assert not found.keys() & {"service", "replication"}
    given = {name: found[name] for name in ("host", "user", "password", "sslmode")}
    assert given == {"host": "db", "user": "other", "password": SECRET, "sslmode": "require"}
    service(monkeypatch, tmp_path, "host=db2")
    assert conninfo_to_dict(connector.here())["host"] == "db2"
    # An unknown service is refused when a session is opened.
    assert conninfo_to_dict(Connector.of("service=none").here())["service"] == "none"


def test_what_a_service_leaves_out_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service(monkeypatch, tmp_path, "host=db")
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PGPORT", "5433")
    connector = Connector.of("service=shop")
    monkeypatch.setenv("PGPORT", "1")
    found = conninfo_to_dict(connector.here())
    assert [found["host"], found["port"]] == ["db", "5433"]


@pytest.mark.parametrize("attribute", ["", "read-write"])
def test_of_several_hosts_of_a_service_a_stream_takes_the_primary_unless_it_says_otherwise(
    attribute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service(monkeypatch, tmp_path, "host=one,other", f"target_session_attrs={attribute}" if attribute else "")
    for url, named in ("service=shop", ""), ("dbname=other", "shop"):
        monkeypatch.setenv("PGSERVICE", named)
        if not named:
            monkeypatch.delenv("PGSERVICE")
        conninfo = Connector.of(url).here()
        assert conninfo_to_dict(conninfo)["target_session_attrs"] == (attribute or "primary")


def test_a_session_for_statements_is_none_for_replication() -> None:
    assert "replication" not in conninfo_to_dict(Connector.of("host=db replication=database").conninfo)


def test_what_nothing_on_the_driver_names_is_not_taken_from_an_executors_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {"PGHOSTADDR": "127.0.0.9", "PGPORT": "1", "PGDATABASE": "other", "PGUSER": "other"}
    for name in ["PGSERVICE", *elsewhere]:
        monkeypatch.delenv(name, raising=False)
    conninfo = Connector.of(f"host={tmp_path}").conninfo
    on_driver = _understood(conninfo)
    for name, value in elsewhere.items():
        monkeypatch.setenv(name, value)
    assert _understood(conninfo) == on_driver


def test_an_executor_is_as_strict_about_tls_as_the_driver_or_as_its_own_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sslmode(url: str) -> object:
        return conninfo_to_dict(Connector.of(url).conninfo).get("sslmode")

    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert sslmode("host=db") is None  # The executor's PGSSLMODE counts then.
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert sslmode("host=db") == "verify-full"
    assert sslmode("host=db sslmode=require") == "require"


def _understood(conninfo: str) -> dict[str, bytes]:
    """Returns where libpq would connect to; it tries, and finds nothing there."""
    names = ("host", "hostaddr", "port", "dbname", "user")
    options = pq.PGconn.connect_start(conninfo.encode()).info
    return {name: next(o.val or b"" for o in options if o.keyword == name.encode()) for name in names}


@pytest.mark.parametrize(
    "url", ["postgresql://:5433/shop", "port=5433 dbname=shop", "host='' port=5433", "service=shop"]
)
def test_both_drivers_look_for_the_socket_in_one_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    service(monkeypatch, tmp_path, "port=5433")
    folders = [tmp_path / "one", tmp_path / "other"]
    monkeypatch.setattr(environment, "_SOCKETS", folders)
    assert not conninfo_to_dict(Connector.of(url).here()).get("host")
    folders[1].mkdir()
    (folders[1] / ".s.PGSQL.5433").touch()
    found = conninfo_to_dict(Connector.of(url).here())
    assert found["host"] == str(folders[1])
