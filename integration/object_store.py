"""An object store on loopback that speaks as much of S3 as Arrow and `deltalake` do, counts what it is asked, and fails
as it is told.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import pytest

BUCKET = "bucket"
_DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


@dataclass(frozen=True)
class Request:
    """`kind`: the HTTP method, or LIST or COPY; all that belongs to an upload in parts is UPLOAD."""

    kind: str
    key: str


@dataclass
class ObjectStore:
    """One bucket. `refuse` says for each request with which status and code it is refused, if it is; `answer_lost`
    whether it is carried out, and the connection cut before the answer.
    """

    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    refuse: Callable[[Request], tuple[int, str] | None] = lambda _: None
    answer_lost: Callable[[Request], bool] = lambda _: False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def kinds(self) -> list[str]:
        """The kinds of the requests since the last call."""
        asked, self.requests = self.requests, []
        return [request.kind for request in asked]


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """An object store that ends with the block."""
    store = ObjectStore()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))
    server.daemon_threads = True
    store.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def named_by_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """An object store that this process finds as any program does, by environment variables."""
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


class _Handler(BaseHTTPRequestHandler):
    store: ObjectStore
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True  # An answer in two packets would wait for the client to acknowledge the first.

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Says nothing."""

    def handle_expect_100(self) -> bool:
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        content = self._content()
        request = Request(self._kind(query), key or query.get("prefix", ""))
        with self.store.lock:
            self.store.requests.append(request)
            refused = self.store.refuse(request) if bucket == BUCKET else (404, "NoSuchBucket")
            if refused is not None:
                self._refuse(*refused)
                return
            lost = self.store.answer_lost(request)
            if lost:
                self.wfile = BytesIO()
            getattr(self, f"_{request.kind.lower()}")(key, query, content)
            self.close_connection |= lost

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - their names there

    def _kind(self, query: dict[str, str]) -> str:
        if "uploadId" in query or "uploads" in query:
            return "UPLOAD"
        if "list-type" in query:
            return "LIST"
        return "COPY" if "x-amz-copy-source" in self.headers else self.command

    def _content(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            content = _joined(self.rfile)
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return _joined(BytesIO(content)) if "aws-chunked" in self.headers.get("Content-Encoding", "") else content

    # -- answers ---------------------------------------------------------------------------------------------------

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>as it was told</Message></Error>".encode())

    def _found(self, key: str) -> bytes | None:
        content = self.store.objects.get(key)
        if content is None and key:
            self._refuse(404, "NoSuchKey")
        return content if key else b""

    def _head(self, key: str, _: dict[str, str], __: bytes) -> None:
        content = self._found(key)
        if content is not None:
            self._answer(200, content, ETag=_tag(content), Last_Modified=_DATE)

    def _get(self, key: str, _: dict[str, str], __: bytes) -> None:
        content = self._found(key)
        if content is None:
            return
        status, headers = 200, {"ETag": _tag(content), "Last_Modified": _DATE}
        if "Range" in self.headers:
            first, _dash, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            begin = int(first) if first else len(content) - int(last)
            part = content[begin : int(last) + 1 if first and last else None]
            headers["Content_Range"] = f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"
            status, content = 206, part
        self._answer(status, content, **headers)

    def _put(self, key: str, _: dict[str, str], content: bytes) -> None:
        if self.headers.get("If-None-Match") == "*" and key in self.store.objects:
            self._refuse(412, "PreconditionFailed")
            return
        self.store.objects[key] = content
        self._answer(200, ETag=_tag(content))

    def _copy(self, key: str, _: dict[str, str], __: bytes) -> None:
        content = self._found(unquote(self.headers["x-amz-copy-source"]).lstrip("/").partition("/")[2])
        if content is not None:
            self.store.objects[key] = content
            self._answer(200, f"<CopyObjectResult><ETag>{_tag(content)}</ETag></CopyObjectResult>".encode())

    def _delete(self, key: str, _: dict[str, str], __: bytes) -> None:
        self.store.objects.pop(key, None)
        self._answer(204)

    def _post(self, _: str, __: dict[str, str], content: bytes) -> None:
        """A delete of several objects."""
        for named in ET.fromstring(content).iter():  # noqa: S314 - from our own clients
            if named.tag.rpartition("}")[2] == "Key":
                self.store.objects.pop(named.text or "", None)
        self._answer(200, b"<DeleteResult/>")

    def _upload(self, key: str, query: dict[str, str], content: bytes) -> None:
        uploads, number = self.store.uploads, query.get("uploadId", "")
        if "uploads" in query:
            number = str(len(uploads))
            uploads[number] = {}
            answer = "InitiateMultipartUploadResult"
            self._answer(200, f"<{answer}><UploadId>{number}</UploadId></{answer}>".encode())
        elif self.command == "PUT":
            uploads[number][int(query["partNumber"])] = content
            self._answer(200, ETag=_tag(content))
        elif self.command == "POST":
            whole = b"".join(part for _, part in sorted(uploads.pop(number).items()))
            self.store.objects[key] = whole
            answer = "CompleteMultipartUploadResult"  # Arrow looks for it.
            self._answer(200, f"<{answer}><ETag>{_tag(whole)}</ETag></{answer}>".encode())
        else:
            uploads.pop(number, None)
            self._answer(204)

    def _list(self, _: str, query: dict[str, str], __: bytes) -> None:
        prefix, after = query.get("prefix", ""), query.get("continuation-token") or query.get("start-after", "")
        most, delimiter = int(query.get("max-keys", 1000)), query.get("delimiter", "")
        found: dict[str, bytes | None] = {}
        for key, content in sorted(self.store.objects.items()):
            head, cut, _rest = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if key.startswith(prefix) and key > after:
                found[prefix + head + cut if cut else key] = None if cut else content
        shown = dict(list(found.items())[:most])
        encode = quote if query.get("encoding-type") == "url" else escape
        items = "".join(
            f"<CommonPrefixes><Prefix>{encode(key)}</Prefix></CommonPrefixes>"
            if content is None
            else f"<Contents><Key>{encode(key)}</Key><Size>{len(content)}</Size><ETag>{_tag(content)}</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, content in shown.items()
        )
        more = len(found) > len(shown)
        token = f"<NextContinuationToken>{encode(list(shown)[-1])}</NextContinuationToken>" if more and shown else ""
        count = f"<KeyCount>{len(shown)}</KeyCount>"
        text = (
            f"<ListBucketResult>{count}<IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        )
        self._answer(200, text.encode())


def _joined(chunks: BufferedIOBase) -> bytes:
    """The content of HTTP's chunks, or of Amazon's own, maybe signed; passes over what follows them."""
    found = b""
    while size := int(chunks.readline().partition(b";")[0], 16):
        found += chunks.read(size)
        chunks.readline()
    while chunks.readline().strip():
        pass
    return found


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()}"'
