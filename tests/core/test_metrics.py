"""Prometheus' text format, and the server that serves it."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import urllib.error
import urllib.request
from dataclasses import fields

import pytest

from backfill.metrics import listed
from backfill.metrics.exposition import CONTENT_TYPE, Metric, Sample, exposition
from backfill.metrics.server import LOOPBACK, MetricsServer
from backfill.reported import SourceReport

ROWS = Metric("rows_total", "counter", "Rows,\nwith a \\ in it.")
LAG = Metric("lag_seconds", "gauge", "Lag.")


def test_samples_of_a_metric_stand_together_below_its_description() -> None:
    samples = [Sample(LAG, 0.5, {"q": "a"}), Sample(ROWS, 10**18, {"q": 'say "\\"\n'}), Sample(LAG, 2, {"q": "b"})]
    assert exposition(samples) == (
        "# HELP lag_seconds Lag.\n"
        "# TYPE lag_seconds gauge\n"
        'lag_seconds{q="a"} 0.5\n'
        'lag_seconds{q="b"} 2\n'
        "# HELP rows_total Rows,\\nwith a \\\\ in it.\n"
        "# TYPE rows_total counter\n"
        'rows_total{q="say \\"\\\\\\"\\n"} 1000000000000000000\n'
    )
    assert exposition([]) == ""


def test_each_metric_of_a_source_is_named_for_a_figure_that_it_reports() -> None:
    reported = {field.name: field.type for field in fields(SourceReport)}
    assert all(reported[name].startswith("int") for name in listed.OF_SOURCE)
    metrics = [*listed.OF_SOURCE.values(), *listed.OF_TABLE.values(), *listed.OF_QUERY.values()]
    assert len({metric.name for metric in metrics}) == len(metrics)
    assert all((metric.kind == "counter") == metric.name.endswith("_total") for metric in metrics)


@pytest.mark.parametrize(("host", "named"), [(LOOPBACK, LOOPBACK), ("::1", "[::1]")])
def test_the_server_gives_what_holds_when_it_is_asked(host: str, named: str) -> None:
    texts = iter(["a 1\n", "a 2\n"])
    server = MetricsServer(lambda: next(texts), port=0, host=host)
    try:
        for text in ("a 1\n", "a 2\n"):
            with urllib.request.urlopen(f"http://{named}:{server.port}/metrics?x=1") as answer:
                assert (answer.read().decode(), answer.headers["Content-Type"]) == (text, CONTENT_TYPE)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{named}:{server.port}/")
        refused.value.close()
        assert refused.value.code == 404
    finally:
        server.close()


def test_a_client_that_has_gone_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """A scrape may have waited for long enough, while the driver had other things to do."""
    answering: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    gone = threading.Event()

    def text() -> str:
        answering.put(threading.current_thread())
        gone.wait()
        return "a 1\n"

    server = MetricsServer(text, port=0, host=LOOPBACK)
    try:
        with socket.create_connection((LOOPBACK, server.port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            thread = answering.get()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # It resets the connection.
        gone.set()
        thread.join()
    finally:
        gone.set()
        server.close()
    assert capsys.readouterr().err == ""
