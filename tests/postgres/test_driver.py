"""Which releases of the ADBC driver are used, and what is seen of what opens sessions."""

from __future__ import annotations

import adbc_driver_postgresql
import pytest

from backfill.errors import OptionsError
from backfill.upstream.postgres.arrow_session import require_driver
from backfill.upstream.postgres.connection import Connector

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
