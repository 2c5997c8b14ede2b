"""Errors without an SQLSTATE: a connection that was not made or was lost, and a problem of this process."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from backfill.errors import BackfillError, ConnectionLostError, DatabaseSetupError, DriverError
from backfill.upstream.postgres.session.failures import translated
from tests.postgres.raised import VALUE, from_adbc


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[libpq] Failed to execute query 'SELECT {VALUE}\nFROM t': out of memory for query result", "pyspark.memory"),
        (
            f"[libpq] Failed to execute query '{VALUE}': ' OR ': cannot allocate memory for output buffer",
            "allow at least",
        ),
        ("NOT_FOUND: [Driver Manager] Could not load x.so: failed to map segment from shared object", "pyspark.memory"),
        ("NOT_FOUND: [Driver Manager] Could not load libadbc_driver_postgresql.so", "install it again"),
    ],
)
def test_what_goes_wrong_in_this_process_is_not_reported_as_a_lost_connection(text: str, expected: str) -> None:
    found = translated(from_adbc(None, text))
    assert type(found) is DriverError
    assert expected in found.message
    assert VALUE not in found.message


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("could not fork new process for connection: Cannot allocate memory", ConnectionLostError, "no connection"),
        ("connection failed: FATAL:  out of memory", ConnectionLostError, "no connection"),
        ('FATAL:  could not load library "/x.so": no such file', DatabaseSetupError, "session_preload_libraries"),
    ],
)
def test_what_the_server_lacks_is_not_reported_as_lacking_in_this_process(
    text: str, kind: type[BackfillError], expected: str
) -> None:
    found = translated(from_adbc(None, text))
    assert type(found) is kind
    assert expected in found.message


def test_a_session_that_a_standby_has_ended_is_reported_as_its_statement_is() -> None:
    """A session may be ended in the middle of rows, where no SQLSTATE comes with the error."""
    text = "terminating connection due to conflict with recovery"
    found = translated(from_adbc(None, f"IO: [libpq] FATAL:  {text}\nDETAIL:  {VALUE}"))
    assert type(found) is ConnectionLostError
    assert found.message.startswith(f"{text}; a standby")
    assert "hot_standby_feedback" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "bad value for connect_timeout: 'abc'",
        'connection failed: FATAL:  unrecognized configuration parameter "work_memm"',
        'connection failed: FATAL:  invalid value for parameter "work_mem": "x"',
        "connection failed: FATAL:  invalid command-line argument for server process: -x",
        "connection failed: could not match 3 port numbers to 2 hosts",
        'connection failed: invalid "ssl_min_protocol_version" value: "TLSv9"',
        "connection failed: GSSAPI authentication not supported",
        'connection is bad: weak sslmode "require" may not be used with sslrootcert=system (use "verify-full")',
        "connection is bad: invalid SSL protocol version range",
        'connection is bad: require_auth method "md5" is specified more than once',
        'connection is bad: negative require_auth method "!none" cannot be mixed with non-negative methods',
        'connection is bad: "min_protocol_version" is greater than "max_protocol_version"',
        'connection is bad: Unix-domain socket path "/x/.s.PGSQL.5432" is too long (maximum 107 bytes)',
        "connection failed: host name must be specified for a verified SSL connection",
    ],
)
def test_a_mistake_in_the_url_is_not_tried_again(text: str) -> None:
    found = translated(psycopg.ProgrammingError(text))
    assert type(found) is DatabaseSetupError
    assert "check the options url" in found.message


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('connection to server at "127.0.0.1", port 1 failed: Connection refused', ConnectionLostError),
        ("server closed the connection unexpectedly", ConnectionLostError),
        ("connection timeout expired", ConnectionLostError),
        ('connection to server at "db" failed: FATAL:  the database system is starting up', ConnectionLostError),
        ('failed: FATAL:  password authentication failed for user "app"', DatabaseSetupError),
        ("failed: FATAL:  unsupported startup parameter: options", DatabaseSetupError),
        ('failed: FATAL:  database "shop" does not exist', DatabaseSetupError),
        ('failed: FATAL:  role "app" does not exist', DatabaseSetupError),
        ('failed: FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "app"', DatabaseSetupError),
        ("failed: fe_sendauth: no password supplied", DatabaseSetupError),
        ('failed: FATAL:  role "app" is not permitted to log in', DatabaseSetupError),
        ('invalid connection option "sslmod"', DatabaseSetupError),
        *(
            (f'connection to server at "db" failed: {text}', DatabaseSetupError)
            for text in (
                'FATAL:  pg_hba.conf rejects connection for host "10.0.0.1", user "app", database "shop"',
                'FATAL:  database "shop" is not currently accepting connections',
                "FATAL:  connection requires a valid client certificate",
                "SSL error: certificate verify failed",
                "SSL error: tlsv1 alert unknown ca",
                "SSL error: tlsv1 alert protocol version",
                "SSL error: ssl/tls alert handshake failure",
                "SSL error: unsupported protocol",
                'server only supports protocol version 3.0, but "min_protocol_version" was set to 3.2',
                "none of the server's SASL authentication mechanisms are supported",
                "server requires OAuth authentication, but oauth_issuer and oauth_client_id are not both set",
                'server certificate for "db.internal" does not match host name "db"',
                'private key file "/etc/app.key" has group or world access; file must have permissions u=rw (0600)',
                "server does not support SSL, but SSL was required",
                "server doesn't support GSSAPI encryption, but it was required",
                "channel binding required, but SSL not in use",
                'authentication method requirement "md5" failed: server requested SASL authentication',
            )
        ),
        ('connection is bad: definition of service "shop" not found', DatabaseSetupError),
        ('invalid channel_binding value: "always"', DatabaseSetupError),
        ('connection to server at "certificates.internal" (10.0.0.1), port 1 failed: timeout', ConnectionLostError),
        ("SSL error: unexpected eof while reading", ConnectionLostError),
        ("could not send SSL negotiation packet: Broken pipe", ConnectionLostError),
    ],
)
def test_an_error_without_sqlstate_is_the_connections(text: str, kind: type[BackfillError]) -> None:
    for error in (psycopg.OperationalError(text), from_adbc(None, text), OSError(text)):
        assert type(translated(error)) is kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('password authentication failed for user "app"', "VALID UNTIL 'infinity'"),
        ('permission denied for database "shop"', "GRANT CONNECT ON DATABASE"),
    ],
)
def test_the_error_for_a_refused_login_names_what_the_server_does_not_say(text: str, expected: str) -> None:
    """Of an expired password the server says the same as of a wrong one."""
    for error in (psycopg.OperationalError(f"connection failed: FATAL:  {text}"), from_adbc(None, f"FATAL:  {text}")):
        assert expected in translated(error).message


def test_the_error_for_a_handshake_that_is_cut_off_names_what_the_server_may_not_know() -> None:
    """The error is transient, since a server that goes down in the midst of a handshake cuts it off, too."""
    found = translated(psycopg.OperationalError("connection failed: SSL error: unexpected eof while reading"))
    assert type(found) is ConnectionLostError
    assert found.message.endswith("with sslnegotiation=direct, that it is PostgreSQL 17 or newer and has ssl = on")


def test_the_error_for_a_login_that_took_too_long_names_connect_timeout() -> None:
    """A login takes some ten round trips, which is long over a slow link."""
    found = translated(psycopg.errors.ConnectionTimeout("connection timeout expired"))
    assert type(found) is ConnectionLostError
    assert "put a longer connect_timeout into url (the default is 10 seconds)" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "sorry, too many clients already",
        "remaining connection slots are reserved for non-replication superuser connections",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'too many connections for role "app"',
    ],
)
def test_the_error_for_a_server_without_room_for_more_sessions_names_its_setting(text: str) -> None:
    for error in (psycopg.OperationalError(f"connection failed: FATAL:  {text}"), from_adbc(None, f"FATAL:  {text}")):
        found = translated(error)
        assert type(found) is ConnectionLostError
        assert text in found.message
        assert "ALTER SYSTEM SET max_connections" in found.message


@pytest.mark.parametrize("kind", [psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError])
def test_what_psycopg_itself_refuses_is_no_matter_of_the_connection(kind: type[psycopg.Error]) -> None:
    found = translated(kind("the query has 2 placeholders but 1 parameters were passed"))
    assert type(found) is DatabaseSetupError
    assert "please report this" in found.message
    assert type(translated(kind('invalid connection option "sslmod"'))) is DatabaseSetupError
    assert type(translated(psycopg.InterfaceError("the connection is closed"))) is ConnectionLostError


REFUSED = "Connection refused"
NO_ROLE = 'FATAL:  role "app" does not exist'
STANDBY = "server is in hot standby mode"
UNTRUSTED = "SSL error: certificate verify failed"


def by_psycopg(hosts: list[tuple[str, str, str]]) -> psycopg.OperationalError:
    lines = [
        f"- host: '{host}', port: '5432', hostaddr: '{address}': connection failed: connection to server at \"{host}\" "
        f"({address}), port 5432 failed: {message}"
        for host, address, message in hosts
    ]
    last = lines[-1].partition("': ")[2].partition("': ")[2]
    return psycopg.OperationalError(
        "\n".join([last, "Multiple connection attempts failed. All failures were:", *lines])
    )


def by_libpq(hosts: list[tuple[str, str, str]]) -> Exception:
    lines = (
        f'connection to server at "{host}" ({address}), port 5432 failed: {message}' for host, address, message in hosts
    )
    return from_adbc(None, "IO: [libpq] Failed to connect: " + "\n".join(lines))


@pytest.mark.parametrize("driver", [by_psycopg, by_libpq])
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ([REFUSED, STANDBY], ConnectionLostError),
        ([STANDBY, REFUSED], ConnectionLostError),
        # As where the primary is restarted, and the standby has another pg_hba.conf.
        ([REFUSED, NO_ROLE], ConnectionLostError),
        ([STANDBY, STANDBY], ConnectionLostError),
        ([UNTRUSTED, STANDBY], DatabaseSetupError),
        ([STANDBY, NO_ROLE], DatabaseSetupError),
        ([UNTRUSTED, NO_ROLE], DatabaseSetupError),
    ],
)
def test_the_error_for_several_hosts_has_the_message_of_each(
    driver: Callable[[list[tuple[str, str, str]]], Exception], message: list[str], kind: type[BackfillError]
) -> None:
    found = translated(driver([("db1", "10.0.0.1", message[0]), ("db2", "::2", message[1])]))
    assert type(found) is kind
    one, other = (words.removeprefix("FATAL:  ") for words in message)
    assert f": db1:5432: {one}; db2:5432: {other}; check" in found.message


@pytest.mark.parametrize("driver", [by_psycopg, by_libpq])
def test_several_addresses_of_one_host_are_one_server(
    driver: Callable[[list[tuple[str, str, str]]], Exception],
) -> None:
    found = translated(driver([("localhost", "::1", REFUSED), ("localhost", "127.0.0.1", NO_ROLE)]))
    assert type(found) is DatabaseSetupError
    assert 'refused the connection: role "app" does not exist; check' in found.message


def test_a_host_that_does_not_answer_is_reported_with_the_others() -> None:
    hosts = ["- host: 'db1', port: '5432', hostaddr: '10.0.0.1': connection timeout expired"]
    hosts += ["- host: '/run/pg', port: '5432', hostaddr: None: connection is bad: connection to server on socket "]
    hosts[-1] += f'"/run/pg/.s.PGSQL.5432" failed: {NO_ROLE}'
    found = translated(psycopg.OperationalError("\n".join(["connection is bad: …", "All failures were:", *hosts])))
    assert type(found) is ConnectionLostError
    assert 'db1:5432: connection timeout expired; /run/pg:5432: role "app" does not exist; check' in found.message


def test_a_service_that_is_not_there_is_reported_with_where_it_is_looked_for() -> None:
    found = translated(psycopg.OperationalError('connection is bad: definition of service "shop" not found'))
    assert "every executor need its file, as ~/.pg_service.conf or where PGSERVICEFILE says" in found.message


def test_a_passfile_that_names_localhost_for_a_socket_is_reported() -> None:
    message = (
        'connection to server on socket "/var/run/postgresql/.s.PGSQL.5432" failed: fe_sendauth: no password supplied'
    )
    assert "put * in place of its host" in translated(from_adbc(None, message)).message
