"""`fabricpulse clocksync status` as a person runs it, against daemons behind a private authority and a password."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import bcrypt
import pytest
import trustme
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, all_have
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockStatus

Status = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def guarded(fleet: SyntheticFleet, daemons: Daemons, tmp_path: Path) -> Status:
    """Coordinator and sidecars with TLS and a password, all synchronized.

    Returns what runs the command with `--url`, further arguments and a client configuration of the given lines.
    """
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA(key_type=trustme.KeyType.ECDSA).cert_pem.write_to_path(tmp_path / "other-ca.pem")
    for name in ("right", "wrong"):
        (tmp_path / f"{name}.secret").write_text(f"{name}-not-the-password\n")
    hashed = bcrypt.hashpw(b"right-not-the-password", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(
        "tls_server_config: {cert_file: cert.pem, key_file: cert.pem}\n"
        f"basic_auth_users: {{operator: '{hashed}'}}\n"
    )
    daemons.scheme = "https"
    daemons.coordinator_arguments = ["--web.config.file", str(tmp_path / "web.yml")]
    daemons.sidecar_arguments = daemons.coordinator_arguments
    daemons.settings = [f"http_client: {{{client(tmp_path)}}}"]
    daemons.coordinator()
    for host in HOSTS:
        daemons.sidecar(host)
    wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 15, "all synchronized")

    def run(url: str, *arguments: str, config: str | None = None) -> "subprocess.CompletedProcess[str]":
        command = [
            sys.executable,
            "-m",
            "fabricpulse.core.cli",
            "clocksync",
            "status",
            "--url",
            url,
            *arguments,
        ]
        if config is not None:
            (tmp_path / "client.yaml").write_text(f"{{{config}}}\n")
            command += ["--http.config.file", str(tmp_path / "client.yaml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def client(directory: Path, ca: str = "ca.pem", who: str = "right") -> str:
    """Keys of `http_client`, as a YAML flow mapping without its braces."""
    password = f"basic_auth: {{username: operator, password_file: {directory}/{who}.secret}}"
    return f"tls_config: {{ca_file: {directory}/{ca}}}, {password}"


def test_status_and_plot_over_tls_with_a_password(guarded: Status, daemons: Daemons, tmp_path: Path) -> None:
    """The fleet's table, a host's table, and the picture of its error and bound, all by one client configuration."""
    right = client(tmp_path)
    fleet = guarded(daemons.url(), config=right)
    assert (fleet.returncode, fleet.stderr) == (0, "")
    assert all(host in fleet.stdout for host in HOSTS)
    plot = tmp_path / "h1.svg"
    host = guarded(f"https://localhost:{daemons.ports['h1']}", "--plot", str(plot), config=right)
    assert (host.returncode, host.stderr) == (0, "")
    assert "h1: synchronized" in host.stdout
    drawn = ElementTree.parse(plot).getroot()  # noqa: S314 - our own file
    line = drawn.find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    assert len(line.attrib["points"].split()) >= 2


def test_a_refusal_is_one_sentence_that_says_what_to_do(
    guarded: Status, daemons: Daemons, tmp_path: Path
) -> None:
    """No or another authority, no or a wrong password, http instead of https, nobody there, no such file."""
    url = daemons.url()
    for config, ca in ((None, ""), (client(tmp_path, ca="other-ca.pem"), "other")):
        words = refused(guarded(url, config=config))
        assert "is not trusted" in words, ca
        assert "--ca-file" in words
    assert "asks for a password" in refused(
        guarded(url, config=f"tls_config: {{ca_file: {tmp_path}/ca.pem}}")
    )
    wrong = refused(guarded(url, config=client(tmp_path, who="wrong")))
    assert "does not accept the password" in wrong
    assert "not-the-password" not in wrong
    assert "does it speak https?" in refused(guarded(url.replace("https", "http")))
    assert "is the daemon running" in refused(
        guarded(f"https://localhost:{reserved_port()}", config=client(tmp_path))
    )
    assert "none.pem" in refused(guarded(url, config=client(tmp_path, ca="none.pem")))
    assert "none.secret" in refused(guarded(url, config=client(tmp_path, who="none")))
    assert "not for this name" in refused(
        guarded(url.replace("localhost", "127.0.0.1"), config=client(tmp_path))
    )


def refused(run: "subprocess.CompletedProcess[str]") -> str:
    """What the command says when it cannot do it: one line, on stderr."""
    assert run.returncode in (1, 2), run
    assert run.stdout == ""
    assert len(run.stderr.strip().splitlines()) == 1, run.stderr
    return run.stderr
