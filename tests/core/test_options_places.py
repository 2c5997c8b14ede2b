"""Options that name a place: a Delta table's path, and where chunks are staged."""

from __future__ import annotations

from urllib.parse import quote

import pyarrow as pa
import pytest
from pyarrow import fs

from backfill.errors import OptionsError
from backfill.options import parse
from tests.core.given_options import NEEDED, problems


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/data/orders/", "/data/orders"),
        ("file:/data/my orders", "/data/my orders"),
        ("file:///data/orders", "/data/orders"),
        ("s3://bucket/orders", "s3://bucket/orders"),
        ("abfss://lake@account.dfs.core.windows.net/orders", "abfss://lake@account.dfs.core.windows.net/orders"),
    ],
)
def test_a_delta_table_is_named_by_its_path_and_the_columns_of_its_key(path: str, kept: str) -> None:
    found = parse({"path": path, "keyColumns": "region, id"})
    assert (found.path, found.key_columns, found.url) == (kept, ("region", "id"), "")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "url is required.*Or path, for a Delta table"),
        ({**NEEDED, "path": "/data"}, "path names a Delta table, and url and dbtable a table of PostgreSQL"),
        ({"path": "/data"}, "keyColumns is required with path"),
        ({"path": "data", "keyColumns": "id"}, "path is 'data'; expected an absolute path, or a URI"),
        ({"path": "/data/a%20b", "keyColumns": "id"}, "expected a path without % before two hexadecimal digits"),
        ({"path": "s3://key:secret@bucket/orders", "keyColumns": "id"}, "expected a URI without credentials"),
        ({"path": "abfss://lake/orders?sig=secret", "keyColumns": "id"}, "expected a URI without credentials"),
        ({"path": "/data", "keyColumns": "id", "slotName": "s", "user": "u"}, "user, slotName is for PostgreSQL"),
        ({**NEEDED, "keyColumns": "id"}, "keyColumns is for a Delta table"),
    ],
)
def test_a_delta_table_and_a_table_of_a_database_are_told_apart(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionsError, match=problem) as caught:
        parse(options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:secret@bucket/staging",
        "s3://secret@bucket/staging",
        "s3://key:sec/ret@bucket/staging",
        "s3://[secret@bucket",
        "s3://bucket/staging?access_key=key&secret_key=secret",
        "s3://bucket/staging?Session_Token=secret",
        "gs://secret@bucket/staging",
        "abfss://container:secret@account.dfs.core.windows.net/staging",
        "abfss://:secret@account.blob.core.windows.net/staging",
        "abfss://container@account.dfs.core.windows.net/staging?client_secret=secret",
        "abfss://container@account.dfs.core.windows.net/staging?sv=2024&sig=secret",
    ],
)
def test_no_credentials_stand_in_the_place_of_staged_chunks(uri: str) -> None:
    (found,) = problems(stagingDir=uri)
    assert found.startswith("stagingDir cannot be used; expected a URI ")
    assert "secret" not in found


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3a://bucket/staging", "s3:// in place of s3a://"),
        ("wasbs://lake@a.blob.core.windows.net/s", "abfss:// in place of wasbs://"),
        ("dbfs:///staging", "an absolute path, or a URI that pyarrow.fs opens: file://, s3://"),
        ("S3://bucket/staging", "an absolute path, or a URI that pyarrow.fs opens: file://, s3://"),
    ],
)
def test_staged_chunks_have_a_place_that_arrow_knows(uri: str, expected: str) -> None:
    (found,) = problems(stagingDir=uri)
    assert found.startswith(f"stagingDir cannot be used; expected {expected}")
    with pytest.raises(pa.ArrowInvalid, match="Unrecognized filesystem type"):
        fs.FileSystem.from_uri(uri)


REFUSED = "in which a blank is %20, # is %23, and so on for what else no path in a URI may have"


@pytest.mark.parametrize("name", ["a b", "é", "a%", "a%zz", "{a}", "a|b", 'a"b', "a^b", "a\\b", "<a>", "a`b", "a\tb"])
def test_what_no_uri_has_is_refused_before_arrow_does(name: str) -> None:
    uri = f"file:///{name}/staging"
    (found,) = problems(stagingDir=uri)
    assert found.endswith(REFUSED)
    with pytest.raises(pa.ArrowInvalid, match="Cannot parse URI"):
        fs.FileSystem.from_uri(uri)
    quoted = f"file:///{quote(name)}/staging"
    assert parse({**NEEDED, "stagingDir": quoted}).staging_dir == quoted
    assert fs.FileSystem.from_uri(quoted)[1] == f"/{name}/staging"


@pytest.mark.parametrize("mark", "#?")
def test_no_part_of_a_uri_is_passed_over_in_silence(mark: str) -> None:
    (found,) = problems(stagingDir=f"file:///orders{mark}1/staging")
    assert found.endswith(REFUSED)
    assert fs.FileSystem.from_uri(f"file:///orders{mark}1/staging")[1] == "/orders"
    for uri in (f"/orders{mark}1/staging", f"file:///orders{quote(mark)}1/staging"):
        assert fs.FileSystem.from_uri(uri)[1] == f"/orders{mark}1/staging"
        assert parse({**NEEDED, "stagingDir": uri}).staging_dir == uri
    store = "s3://bucket/staging?region=eu-west-1"
    assert parse({**NEEDED, "stagingDir": store}).staging_dir == store
