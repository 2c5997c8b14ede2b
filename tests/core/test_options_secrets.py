"""No secret among the options stands in a representation or in an error about them."""

from __future__ import annotations

import pickle

import pytest

from backfill.errors import OptionsError
from backfill.options import parse
from tests.core.given_options import NEEDED, parsed, problems

SECRET = "hunter2-is-secret"  # noqa: S105 - a password for tests


@pytest.mark.parametrize("name", ["password", "sessionInitStatement"])
def test_what_may_be_secret_is_in_no_representation(name: str) -> None:
    options = parsed(**{name: SECRET})
    assert SECRET in (options.password, options.session_init_statement)
    assert SECRET not in repr(options)
    assert SECRET not in repr(pickle.loads(pickle.dumps(options)))  # noqa: S301 - our own bytes
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{SECRET}@db/shop",
        f"postgresql://db/shop?user=app&password={SECRET}",
        f"postgresql://db/shop?sslpassword={SECRET}",
        f"postgresql://db/shop?user=app&password = {SECRET}",
        f"postgresql://db/shop?oauth_client_secret={SECRET}",
        f"host=db password={SECRET}",
        f"password = '{SECRET}' host=db",
        f"host='db'password={SECRET}",
        f"host=db sslpassword={SECRET}",
        f"host=db oauth_client_secret={SECRET}",
        f"host=db scram_client_key={SECRET}",
        f"postgresql://db/shop?scram_server_key={SECRET}",
        f"mysql://app:{SECRET}@db/shop",
        f"jdbc:postgresql://db/shop?password={SECRET}",
        f"postgresql://app:#{SECRET}@db/shop",
        f"postgresql://app:?{SECRET}@db/shop",
        f"postgresql://app:{SECRET}/x@db/shop",
        f"postgresql://app@db/shop#?password={SECRET}",
        f"postgresql://app:{SECRET}\N{ACCOUNT OF}@db/shop",
        f"postgresql://app:{SECRET}@[db/shop",
        f"app:{SECRET}@db",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse({**NEEDED, "url": url})
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_password_is_not_repeated_where_other_options_are_wrong() -> None:
    assert SECRET not in str(problems(password=SECRET, numPartitions="x", pass_word=SECRET))
