"""Errors as the drivers raise them."""

from __future__ import annotations

import adbc_driver_manager
import psycopg

VALUE = "hunter2-is-a-row-value"


def from_psycopg(state: str, text: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)(text)


def from_adbc(state: str | None, text: str, primary: str | None = None) -> adbc_driver_manager.Error:
    status = adbc_driver_manager.AdbcStatusCode.INTERNAL
    details = [] if primary is None else [("PG_DIAG_MESSAGE_PRIMARY", primary.encode())]
    return adbc_driver_manager.OperationalError(text, status_code=status, sqlstate=state, details=details)
