"""Options of a command line replace keys of the file that says how to make requests."""

from pathlib import Path

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_options import client_config

URL = "http://monitor:9090"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "http.yml"
    path.write_text(
        "basic_auth: {username: me, password_file: /p}\n"
        "tls_config: {ca_file: /ca, server_name: monitor}\n"
        "timeout_s: 7\n"
    )
    return path


def test_single_keys_are_replaced(file: Path) -> None:
    """What an option gives replaces its key; what no option gives stays as in the file."""
    config = client_config("--url", URL, file, ca_file="/other")
    assert config.tls_config is not None
    assert (config.tls_config.ca_file, config.tls_config.server_name) == ("/other", "monitor")
    assert (config.timeout_s, config.basic_auth is None) == (7, False)
    plain = client_config("--url", URL, None)
    assert (plain.tls_config, plain.basic_auth, plain.token_file) == (None, None, "")


def test_a_token_replaces_a_password(file: Path) -> None:
    """A request shows one of them: that of the option."""
    config = client_config("--url", URL, file, token_file="/t")  # noqa: S106
    assert (config.token_file, config.basic_auth) == ("/t", None)


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("monitor:9090", {}, "--url"),
        (f"{URL}/?x=1", {}, "no ? and no #"),
        (URL, {"cert_file": "/c"}, "needed together"),
        ("http://me:secret@monitor:9090", {"token_file": "/t"}, "--url has a password"),
    ],
)
def test_what_does_not_fit_is_one_sentence(url: str, options: dict[str, str], told: str) -> None:
    """A wrong URL, half a certificate, two passwords: a UserError that tells no password."""
    with pytest.raises(UserError) as error:
        client_config("--url", url, None, **options)
    assert told in str(error.value)
    assert "secret" not in str(error.value)
