"""Without root a lab is built in a user namespace, or one sentence says what forbids it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

import fabricpulse.core
import fabricpulse.lab
from fabricpulse.core import _atomic
from fabricpulse.core.errors import UserError
from fabricpulse.lab import isolation, syscalls

pytestmark = pytest.mark.root

NOBODY = 65_534

SCRIPT = """
import os, socket, sys
from fabricpulse.lab import Lab
assert os.geteuid() != 0
with Lab(hosts=2, rails=2) as lab:
    assert lab.run("h0", ["hostname"]).stdout == "h0\\n"
    ours, theirs = lab.socket("h0", socket.SOCK_DGRAM), lab.socket("h1", socket.SOCK_DGRAM)
    theirs.bind((lab.address("h1", "rail1"), 5000)); theirs.settimeout(60)
    ours.bind((lab.address("h0", "rail0"), 0)); ours.sendto(b"x", theirs.getsockname())
    assert theirs.recvfrom(9)[1][0] == lab.address("h0", "rail0")
    with lab.host("h0").nic("rail0").down(), lab.host("h1").nic("rail1").loss(50), lab.spine(0).limit(100):
        assert lab.run("h0", ["cat", "/sys/class/net/rail0/carrier"]).stdout == "0\\n"
    assert lab.run("h0", ["cat", "/sys/class/net/rail0/carrier"]).stdout == "1\\n"
    sleeper = lab.popen("h0", ["sleep", "1000"])
    sleeper.kill()
    assert sleeper.wait(60) == -9
    print("done")
"""


def run_as_ordinary_user(script: str) -> "subprocess.CompletedProcess[str]":
    """Runs a script without root. This Python and the checkout may lie where only root may look (/root)."""
    if os.geteuid() != 0:
        command = [sys.executable, "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    with tempfile.TemporaryDirectory(prefix="fabricpulse-test-") as name:
        directory = Path(name)
        for package in (fabricpulse.core, fabricpulse.lab):
            for portion in package.__path__:
                target = directory / "fabricpulse" / package.__name__.rpartition(".")[2]
                shutil.copytree(portion, target, dirs_exist_ok=True)
        # A native module of core lies where the build has put it.
        native = Path(str(_atomic.__file__))
        shutil.copy(native, directory / "fabricpulse" / "core" / native.name)
        for library in ("msgspec", "yaml"):
            shutil.copytree(Path(sysconfig.get_path("platlib")) / library, directory / library)
        installed = directory / "python"
        installed.mkdir()
        subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
        # A bind mount, in a mount namespace of its own, is reached by its new path alone.
        as_nobody = f"--reuid={NOBODY} --regid={NOBODY} --clear-groups --no-new-privs"
        shell = f'mount --bind "$1" "$2" && shift 2 && exec setpriv {as_nobody} "$@"'
        python = installed / Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", shell, "sh", sys.base_prefix, installed, python, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/",
                "PYTHONPATH": name,
                # Of a Python built with --enable-shared, whose own path to it may be closed to this user.
                "LD_LIBRARY_PATH": str(installed / "lib"),
            },
            timeout=60,
        )


def test_a_lab_without_root() -> None:
    """An ordinary user gets the whole lab: hosts, rails, processes, faults."""
    done = run_as_ordinary_user(SCRIPT)
    if "LabUnavailableError: the lab needs root or user namespaces" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stdout.endswith("done\n"), done.stderr
    assert done.returncode == 0


def test_forbidden_user_namespaces_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where namespaces are forbidden altogether, the error says so and what to do."""

    def refuse(flags: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(syscalls, "unshare", refuse)
    with pytest.raises(
        UserError, match=r"^the lab needs root or user namespaces, and .*; run as root"
    ) as raised:
        isolation.unshare_all()
    assert "\n" not in str(raised.value)


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without iproute2 and nftables the error names the programs and the packages."""
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool != "ip" else "/sbin/ip")
    with pytest.raises(UserError, match=r"needs tc and nft, .* install iproute2 and nftables"):
        fabricpulse.lab.Lab().start()
