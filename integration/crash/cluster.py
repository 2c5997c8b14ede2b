"""A Spark cluster of two hosts on one machine: Spark starts no speculative copy of a task on the host of the first."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from integration.processes import kill
from integration.servers.local import free_port
from integration.spark_session import environment, quick_jvm
from integration.waiting import eventually

HOSTS: Final = ("127.0.0.1", "127.0.0.2")
PATIENCE: Final = 180.0
"""Seconds for what takes two on an idle machine."""


@contextmanager
def cluster(folder: Path, extra: Mapping[str, str]) -> Iterator[str]:
    """A worker of one core on each host; gives the master's url. `extra` is added to the environment of executors."""
    folder.mkdir()
    variables = {
        **os.environ,
        **environment(),
        **extra,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": quick_jvm(),
    }
    port = free_port()
    with ExitStack() as stack:
        master = ("org.apache.spark.deploy.master.Master", "--host", HOSTS[0], "--port", str(port))
        stack.enter_context(_running(folder / "master", (*master, "--webui-port", "0"), variables))
        eventually(lambda: _answers(port), seconds=PATIENCE, otherwise=lambda: "Spark's master does not answer")
        for host in HOSTS:
            place = folder / host
            worker = ("org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g")
            rest = ("--webui-port", "0", "--work-dir", str(place), f"spark://{HOSTS[0]}:{port}")
            own = {**variables, "SPARK_LOCAL_IP": host}
            stack.enter_context(_running(place, (*worker, *rest), own))
        yield f"spark://{HOSTS[0]}:{port}"


@contextmanager
def _running(folder: Path, arguments: tuple[str, ...], variables: Mapping[str, str]) -> Iterator[None]:
    """Runs one of Spark's daemons in the foreground; ends it with its executors."""
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [Path(variables["SPARK_HOME"]) / "bin" / "spark-class", *arguments],
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        kill(process)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOSTS[0], port)) == 0
