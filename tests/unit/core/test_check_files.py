"""`fabricpulse check` and the files that settings name: none is overlooked, none is asked for in vain."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner, Result
from msgspec import inspect
from tests.fixtures.descriptors import none_left

from fabricpulse.core import check as check_module
from fabricpulse.core.check import UNKNOWN, check_file, command, kinds
from fabricpulse.core.config import Section, load_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.file_settings import READ_FILE, file_roles
from fabricpulse.core.reference import field_meanings

# What a text is about, by its meaning in docs/configuration.md, where it is no file itself.
_NO_FILES = {
    ("AccessConfig", "user"),  # of the users in --web.config.file
    ("TlsServerConfig", "cert"),  # PEM in the file
    ("TlsServerConfig", "key"),
    ("TlsServerConfig", "client_ca"),
    ("RuleConfig", "action"),  # on the paths of lanes
}
_FILE_WORDS = re.compile(r"\b(files?|folders?|director(y|ies)|sockets?|paths?)\b", re.IGNORECASE)


def check(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def sections_in(info: Any) -> Iterator[type[Section]]:
    """A section and all that it can hold."""
    if isinstance(info, inspect.StructType):
        if issubclass(info.cls, Section):
            yield info.cls
        for field in info.fields:
            yield from sections_in(field.type)
    for name in ("type", "item_type", "value_type"):
        if (inner := getattr(info, name, None)) is not None:
            yield from sections_in(inner)
    for inner in getattr(info, "types", ()):
        yield from sections_in(inner)


def is_text(info: Any) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(map(is_text, info.types))
    return isinstance(info.type if isinstance(info, inspect.Metadata) else info, inspect.StrType)


def undeclared(kind: type[Section]) -> list[str]:
    """Texts of a section that are the path of something by name, default or meaning, and have no role."""
    info, meanings, roles = inspect.type_info(kind), field_meanings(kind), file_roles(kind)
    assert isinstance(info, inspect.StructType)
    return [
        f"{kind.__name__}.{field.name}"
        for field in info.fields
        if is_text(field.type)
        and field.name not in roles
        and (kind.__name__, field.name) not in _NO_FILES
        and (
            field.name.endswith(("_file", "_path", "_dir", "_keys"))
            or (isinstance(field.default, str) and field.default.startswith("/"))
            or _FILE_WORDS.search(meanings.get(field.name, ""))
        )
    ]


def all_sections() -> set[type[Section]]:
    return {section for kind in kinds().values() for section in sections_in(inspect.type_info(kind))}


def test_each_setting_that_names_a_file_says_what_becomes_of_it() -> None:
    """A new one without a role would not be looked at by `check`, or be asked for where it need not be."""
    assert [name for section in all_sections() for name in undeclared(section)] == []


class Careless(Section, frozen=True):
    """Settings without roles.

    membership : file of the hosts. word : a word.
    """

    membership: str = ""
    key_file: str | None = None
    state: str = "/var/lib/x"
    word: str = ""
    other_file: Annotated[str, READ_FILE] = ""


def test_a_path_without_a_role_is_found() -> None:
    """By its meaning, its name, its default; what has a role, and what is no path, is not."""
    assert undeclared(Careless) == ["Careless.membership", "Careless.key_file", "Careless.state"]


# Section and setting -> kind of file, and a configuration that names FILE there. Of what two files say together, both.
READ = {
    ("MembershipSource", "file"): ("mesh", "membership: {file: FILE}"),
    ("MeshConfig", "key_file"): ("mesh", "key_file: FILE\nmembership: {url: 'http://c:9614/m'}"),
    ("CoordinatorConfig", "membership"): ("clocksync-coordinator", "membership: FILE"),
    ("CoordinatorConfig", "topology"): ("clocksync-coordinator", "topology: FILE"),
    ("CoordinatorConfig", "token_file"): ("clocksync-coordinator", "token_file: FILE"),
    ("SidecarConfig", "membership"): ("clocksync-sidecar", "membership: FILE"),
    ("NodeConfig", "receiver_keys"): ("remediation-node", "receiver: 'http://r:9615'\nreceiver_keys: FILE"),
    ("NodeConfig", "token_file"): ("audit-node", "token_file: FILE"),
    ("ReceiverConfig", "membership"): ("remediation-receiver", "membership: FILE"),
    ("ReceiverConfig", "token_file"): ("remediation-receiver", "token_file: FILE"),
    ("ReceiverConfig", "signing_key_file"): ("remediation-receiver", "signing_key_file: FILE"),
    ("AccessConfig", "token_file"): (
        "remediation-receiver",
        "access: [{name: a, role: agent, token_file: FILE}]",
    ),
    ("AccessConfig", "key_file"): (
        "remediation-receiver",
        "access: [{name: a, role: agent, key_file: FILE}]",
    ),
    ("HttpClientConfig", "token_file"): ("clocksync-sidecar", "http_client: {token_file: FILE}"),
    ("BasicAuth", "password_file"): (
        "clocksync-sidecar",
        "http_client: {basic_auth: {username: u, password_file: FILE}}",
    ),
    ("TlsClientConfig", "ca_file"): ("http-client", "tls_config: {ca_file: FILE}"),
    ("TlsClientConfig", "cert_file"): ("http-client", "tls_config: {cert_file: FILE, key_file: FILE}"),
    ("TlsClientConfig", "key_file"): ("http-client", "tls_config: {cert_file: FILE, key_file: FILE}"),
    ("TlsServerConfig", "cert_file"): (
        "web-config-file",
        "tls_server_config: {cert_file: FILE, key_file: FILE}",
    ),
    ("TlsServerConfig", "key_file"): (
        "web-config-file",
        "tls_server_config: {cert_file: FILE, key_file: FILE}",
    ),
    ("TlsServerConfig", "client_ca_file"): (
        "web-config-file",
        "tls_server_config: {cert_file: FILE, key_file: FILE, client_ca_file: FILE, "
        "client_auth_type: RequireAndVerifyClientCert}",
    ),
}


def test_the_table_has_each_file_that_is_read() -> None:
    """So that what follows is of all daemons."""
    read = {
        (section.__name__, name)
        for section in all_sections()
        for name, role in file_roles(section).items()
        if role.use == "read"
    }
    assert set(READ) == read


@pytest.mark.parametrize("place", sorted(READ), ids=".".join)
def test_a_file_that_is_missing_is_a_warning_and_one_that_is_bad_an_error(
    tmp_path: Path, place: tuple[str, str]
) -> None:
    """Keys need not be where the check is run; what is there must be usable."""
    kind, text = READ[place]
    named, path = tmp_path / "named", tmp_path / "x.yaml"
    path.write_text(text.replace("FILE", str(named)))
    result = check("--kind", kind, path)
    assert result.exit_code == 0, result.output
    setting = re.escape(place[1])
    assert re.search(rf"warning: (\S+\.)?{setting}: cannot read {named}: No such file", result.output)
    assert check("--kind", kind, "--strict", path).exit_code == 1
    named.write_text("\0[")  # neither YAML nor a secret
    result = check("--kind", kind, path)
    assert (result.exit_code, "good" in result.output) == (1, False), result.output
    assert str(path) in result.output


def test_a_secret_that_all_may_read_is_a_warning(tmp_path: Path) -> None:
    """With a mesh key anybody forges probes. What the group may read is for the daemon's user."""
    key, path = tmp_path / "mesh.key", tmp_path / "mesh.yaml"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    path.write_text(f"key_file: {key}\nmembership: {{url: 'http://c:9614/m'}}\n")
    for mode, warned in ((0o600, False), (0o640, False), (0o644, True), (0o642, True)):
        key.chmod(mode)
        assert (
            f"warning: key_file: every user of this machine may use {key}" in check(path).output
        ) == warned


def test_what_the_daemon_makes_is_not_asked_for(tmp_path: Path) -> None:
    """Nor the switch that people throw: its absence is the normal state."""
    path = tmp_path / "remediation-node.yaml"
    path.write_text(
        "receiver: http://r:9615\npause_file: /nonexistent/pause\njournal: /nonexistent/journal\n"
    )
    result = check("--strict", path)
    assert (result.exit_code, result.output) == (0, f"{path}: good (remediation-node)\n")


def test_a_bad_file_is_shown_with_its_place_while_another_is_missing(tmp_path: Path) -> None:
    """A membership is in the repository, the key is not: the missing key hides no mistake."""
    members, path = tmp_path / "fleet.yaml", tmp_path / "mesh.yaml"
    members.write_text("hosts:\n  - {nam: a}\n")
    path.write_text(f"key_file: /nonexistent\nmembership: {{file: {members}}}\n")
    result = check(path)
    assert result.exit_code == 1
    assert f"{path}: membership.file: {members}:2: unknown key 'hosts[0].nam'" in result.output
    assert "  2 |   - {nam: a}\n" in result.output


@pytest.mark.parametrize(
    ("host", "warned"), [("gpu-1", False), ("GPU-1.example.com", False), ("gpu-2", True)]
)
def test_a_mesh_whose_membership_lacks_its_host(tmp_path: Path, host: str, warned: bool) -> None:
    """It would probe nothing; short and fully qualified names are one host."""
    members, path = tmp_path / "fleet.yaml", tmp_path / "mesh.yaml"
    members.write_text("hosts: [{name: gpu-1}]\n")
    path.write_text(f"host: {host}\nmembership: {{file: {members}}}\n")
    finding = check_file(path)
    assert finding.exit_code == 0
    assert [f"host {host!r} is not in the membership {members}" in text for text in finding.warnings] == [
        True
    ] * warned


def test_relative_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the daemons take them: certificates of the web configuration beside it, all else from where they run."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "fleet.yaml").write_text("hosts: [{name: a}]\n")
    path = tmp_path / "sub" / "clocksync-sidecar.yaml"
    path.write_text("membership: fleet.yaml\n")
    monkeypatch.chdir(tmp_path)
    assert check_file(path).warnings == ()
    monkeypatch.chdir(tmp_path / "sub")
    assert len(check_file(path).warnings) == 1
    web = tmp_path / "web.yaml"
    web.write_text("tls_server_config: {cert_file: c, key_file: k}\n")
    assert f"cannot read {tmp_path}/c" in check_file(web).warnings[0]


def test_a_secret_that_is_missing_is_named_with_how_to_make_it(tmp_path: Path) -> None:
    """Who has just written the shipped files has none yet."""
    for name, text, last in (
        ("mesh", "key_file: {file}\nmembership: {{url: 'http://c:9614/m'}}\n", "chown fabricpulse {file}"),
        ("audit-node", "token_file: {file}\n", "off until it is enabled"),
    ):
        file, config = tmp_path / f"{name}.secret", tmp_path / f"{name}.yaml"
        config.write_text(text.format(file=file))
        (warning,) = check_file(config, name).warnings
        assert f"; make it once, (umask 077; openssl rand -hex 32 >{file})" in warning
        assert warning.endswith(last.format(file=file))


@pytest.mark.parametrize("content", ["", "key\n"])
def test_that_no_descriptor_is_left_is_no_fault_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """Neither the settings nor what they name is called bad, and no warning says that a daemon would not start: it is
    not known.
    """
    config, key = tmp_path / "mesh.yaml", tmp_path / "mesh.key"
    key.write_text(content)
    config.write_text(f"key_file: {key}\nmembership: {{url: 'http://c:9614/m'}}\n")
    known = kinds()
    monkeypatch.setattr(check_module, "kinds", lambda: known)  # which are files, too
    with none_left():
        finding = check_file(config)
        with pytest.raises(ConfigError) as refused:
            load_config(config, known["mesh"])
    assert (finding.exit_code, finding.warnings) == (UNKNOWN, ())
    assert "Too many open files" in finding.error
    assert refused.value.exit_code == 1


@pytest.mark.parametrize("where", ["opened", "read"])
def test_a_named_file_that_cannot_be_read_for_want_of_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """They run out after the settings were read, of this process or of the machine."""
    config, key = tmp_path / "mesh.yaml", tmp_path / "mesh.key"
    key.touch()
    config.write_text(f"key_file: {key}\nmembership: {{url: 'http://c:9614/m'}}\n")
    full, opened = OSError(errno.ENFILE, os.strerror(errno.ENFILE)), Path.open

    def fails(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == key:
            raise full
        return opened(self, *arguments, **options)

    def reads(_: Path) -> None:
        raise ConfigError("cannot read key file") from full

    if where == "opened":
        monkeypatch.setattr(Path, "open", fails)
    else:
        monkeypatch.setattr(check_module, "resolve_name", lambda _: reads)
    finding = check_file(config)
    assert (finding.exit_code, finding.warnings) == (UNKNOWN, ())


def test_strict_fails_until_a_secret_is_made(tmp_path: Path) -> None:
    """The shipped settings name it, and the daemon would not start; without --strict that is a warning."""
    config, key = tmp_path / "mesh.yaml", tmp_path / "mesh.key"
    config.write_text(f"key_file: {key}\nmembership: {{url: 'http://c:9614/m'}}\n")
    assert [check(config).exit_code, check("--strict", config).exit_code] == [0, 1]
    key.write_text(32 * "a")
    key.chmod(0o600)
    assert check("--strict", config).exit_code == 0
