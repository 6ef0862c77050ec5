"""Options of a command line replace keys of the file that says how to make requests."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fabricpulse.core.cli import cli
from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_options import ClientOptions, client_options

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
    config = ClientOptions(file, ca_file="/other").config("--url", URL)
    assert config.tls_config is not None
    assert (config.tls_config.ca_file, config.tls_config.server_name) == ("/other", "monitor")
    assert (config.timeout_s, config.basic_auth is None) == (7, False)
    plain = ClientOptions().config("--url", URL)
    assert (plain.tls_config, plain.basic_auth, plain.token_file) == (None, None, "")


def test_a_token_replaces_a_password(file: Path) -> None:
    """A request shows one of them: that of the option."""
    config = ClientOptions(file, token_file="/t").config("--url", URL)  # noqa: S106
    assert (config.token_file, config.basic_auth) == ("/t", None)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("monitor:9090", {}, "--url"),
        (f"{URL}/?x=1", {}, "no ? and no #"),
        (URL, {"cert_file": "/c"}, "needed together"),
        ("http://me:secret@monitor:9090", {"token_file": "/t"}, "--url has a password"),
    ],
)
def test_what_does_not_fit_is_one_sentence(url: str, options: dict[str, str], message: str) -> None:
    """A wrong URL, half a certificate, two passwords: a UserError without the password."""
    with pytest.raises(UserError) as error:
        ClientOptions(None, **options).config("--url", URL, url)
    assert message in str(error.value)
    assert "secret" not in str(error.value)


# The commands that ask a server, and what their environment variables begin with.
ASKING = {
    "audit run": "FABRICPULSE_CLIENT",
    "clocksync status": "FABRICPULSE_CLIENT",
    "mesh show": "FABRICPULSE_CLIENT",
    "status": "FABRICPULSE_CLIENT",
    "remediation status": "FABRICPULSE_RECEIVER",
    "rules check": "FABRICPULSE_PROMETHEUS",
    "why": "FABRICPULSE_PROMETHEUS",
}
OPTIONS = ("--http.config.file", "--token-file", "--ca-file", "--cert-file", "--key-file")


def command_of(name: str) -> click.Command:
    found: click.Command = cli
    for part in name.split():
        assert isinstance(found, click.Group)
        command = found.get_command(click.Context(found), part)
        assert command is not None
        found = command
    return found


@pytest.mark.parametrize(("name", "variables"), ASKING.items())
def test_all_client_commands_take_the_same_options(name: str, variables: str) -> None:
    """File, token, authority, certificate and key, each with its variable."""
    declared = {o: p.envvar for p in command_of(name).params for o in p.opts}
    for option in OPTIONS:
        key = option.removeprefix("--").replace("-", "_").replace(".", "_").upper()
        assert declared.get(option) == f"{variables}_{key}"


def parsed(arguments: list[str], environment: dict[str, str]) -> tuple[ClientOptions, ClientOptions]:
    """What a command with two servers is handed: options of the first, of the second."""
    found: list[ClientOptions] = []

    @click.command()
    @client_options()
    @client_options("the other", "OTHER", prefix="other", parameter="other")
    def command(client: ClientOptions, other: ClientOptions) -> None:
        found.extend((client, other))

    result = CliRunner().invoke(command, arguments, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0], found[1]


def test_an_option_outranks_its_variable() -> None:
    """And what is given for one server is not given for the other."""
    first, second = parsed(
        ["--ca-file", "/a"],
        {
            "FABRICPULSE_CLIENT_CA_FILE": "/b",
            "FABRICPULSE_CLIENT_TOKEN_FILE": "/t",
            "OTHER_HTTP_CONFIG_FILE": "/o",
        },
    )
    assert first == ClientOptions(ca_file="/a", token_file="/t")  # noqa: S106
    assert second == ClientOptions(Path("/o"))


def test_nothing_given_is_false() -> None:
    """So that a command can tell whether a second server has settings of its own."""
    first, second = parsed([], {})
    assert not first
    assert not second
    assert parsed(["--other-token-file", "/t"], {})[1]
