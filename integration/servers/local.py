"""PostgreSQL servers that belong to us: any number of them, to be stopped and killed at will."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg import sql

from integration.servers.collation import NAME, Locale, linguistic_locale
from integration.servers.installation import Installation, installation
from integration.servers.postmaster import Postmaster
from integration.servers.sandbox import Sandbox
from integration.servers.server import SETTINGS, Can, ServerError, StopMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ROLE = "postgres"
ATTEMPTS = 5

# Below the ports that the kernel gives to outgoing connections. A client that tries again and again to reach
# a stopped server on one of those is in the end given that very port and connects to itself; then the server
# cannot come back.
PORTS = range(20_000, 30_000)


def own_ports(environment: Mapping[str, str]) -> range:
    """The ports of this process alone among those that share the tests: a stopped server finds its port free again."""
    worker = environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    workers = environment.get("PYTEST_XDIST_WORKER_COUNT", "1")
    return PORTS[int(worker) :: int(workers)]


@cache
def _in_any_order() -> Iterator[int]:
    ports = list(own_ports(os.environ))
    secrets.SystemRandom().shuffle(ports)
    return iter(ports)


def free_port() -> int:
    """A port that nobody listens on now; somebody may by the time it is used.

    This process gets no port twice: a client of the earlier server would take the next one for it.
    """
    for port in _in_any_order():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError("this process has tried all of its ports")


def quoted(value: str) -> str:
    """`value` as postgresql.conf wants it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


@dataclass(frozen=True)
class Site:
    """What servers of one version share."""

    sandbox: Sandbox
    installation: Installation
    locale: Locale


class LocalServer:
    """A data directory with a server on it, reachable at 127.0.0.1 and at a Unix socket.

    Every local client may be any role: there are no passwords. Text is ordered linguistically unless a collation
    says otherwise.
    """

    can = Can.RESTART | Can.KILL | Can.PROGRAMS
    origin = "started by the tests"

    def __init__(self, site: Site, name: str, settings: Mapping[str, str]) -> None:
        self.settings = settings
        self.folder = site.sandbox.make_folder(name)
        self.port = free_port()
        self.version = 0
        self._data = self.folder / "data"
        self._log = self.folder / "log"
        self._site = site
        self._postmaster = Postmaster(
            self.bin("postgres"),
            self._data,
            self._log,
            account=site.sandbox.account,
            environment=site.locale.environment,
        )
        self._create()
        self._first_start()

    @property
    def dsn(self) -> str:
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/postgres"

    @property
    def socket_dsn(self) -> str:
        """The same server without TCP, which is faster for what comes in small messages."""
        return f"postgresql://{ROLE}@/postgres?host={self.folder}&port={self.port}"

    def start(self) -> None:
        self._postmaster.start()

    def stop(self, mode: StopMode = "fast") -> None:
        self._postmaster.stop(mode)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        self._postmaster.kill()

    @property
    def pid(self) -> int | None:
        """The number of the postmaster; None if the server does not run."""
        return self._postmaster.pid

    def bin(self, name: str) -> Path:
        return self._site.installation.program(name)

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _create(self) -> None:
        self._site.sandbox.run(
            [
                self.bin("initdb"),
                f"--pgdata={self._data}",
                f"--username={ROLE}",
                *("--encoding=UTF8", f"--locale={NAME}", "--auth=trust", "--no-sync", "--no-instructions"),
            ],
            environment=self._site.locale.environment,
        )
        with (self._data / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'test.conf'\n")

    def _first_start(self) -> None:
        for attempt in itertools.count(1):
            self._configure()
            try:
                self.start()
                break
            except ServerError:
                if attempt == ATTEMPTS or "Address already in use" not in self.log():
                    raise
                self.port = free_port()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            self.version = connection.info.server_version
        with psycopg.connect(self.dsn, dbname="template1", autocommit=True) as connection:
            # initdb takes over the collations that `locale -a` lists, and that does not look at LOCPATH.
            collation, locale = sql.Identifier("pg_catalog", NAME), sql.Literal(NAME)
            connection.execute(sql.SQL("CREATE COLLATION IF NOT EXISTS {} (locale = {})").format(collation, locale))

    def _configure(self) -> None:
        settings = {
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            # Files of the data directory, so that a killed server leaves nothing in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
        }
        lines = [f"{name} = {quoted(value)}\n" for name, value in settings.items()]
        file = self._data / "test.conf"
        file.write_text("".join(lines))
        self._site.sandbox.account.own(file)


class LocalServers:
    """Starts servers of one version; closing it, or the end of this process, ends them all.

    Costs nothing until the first is started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._site: Site | None = None
        self._servers: list[LocalServer] = []
        self._names = map(str, itertools.count(1))  # a server that could not be made keeps its folder

    def start(self, settings: Mapping[str, str] | None = None) -> LocalServer:
        """A fresh server with a system identifier of its own; `settings` are added to the usual ones."""
        if self._site is None:
            self._site = self._prepare()
        server = LocalServer(self._site, next(self._names), {**SETTINGS, **(settings or {})})
        self._servers.append(server)
        return server

    def close(self) -> None:
        """May be called twice."""
        try:
            for server in self._servers:
                server.stop("immediate")
        finally:
            if self._site is not None:
                self._site.sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> Site:
        programs = installation(self._environment)
        sandbox = Sandbox()
        try:
            return Site(sandbox, programs.within_reach(sandbox), linguistic_locale(sandbox))
        except BaseException:
            sandbox.close()
            raise
