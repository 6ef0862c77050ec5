"""Without root a lab is built in a user namespace, or one sentence says what forbids it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fabricpulse.core
import fabricpulse.lab
from fabricpulse.core import _atomic
from fabricpulse.core.errors import UserError
from fabricpulse.lab import keeper, syscalls

pytestmark = pytest.mark.root

NOBODY = 65_534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")

SCRIPT = """
import os, socket, sys
from fabricpulse.lab import Lab
assert os.geteuid() != 0
with Lab(hosts=2, rails=2) as lab:
    assert lab.run("h0", ["hostname"]).stdout == "h0\\n"
    ours, theirs = lab.socket("h0", socket.SOCK_DGRAM), lab.socket("h1", socket.SOCK_DGRAM)
    theirs.bind((lab.address("h1", "rail1"), 5000)); theirs.settimeout(5)
    ours.bind((lab.address("h0", "rail0"), 0)); ours.sendto(b"x", theirs.getsockname())
    assert theirs.recvfrom(9)[1][0] == lab.address("h0", "rail0")
    with lab.host("h0").nic("rail0").down(), lab.host("h1").nic("rail1").loss(50), lab.spine(0).limit(100):
        assert lab.run("h0", ["cat", "/sys/class/net/rail0/carrier"]).stdout == "0\\n"
    assert lab.run("h0", ["cat", "/sys/class/net/rail0/carrier"]).stdout == "1\\n"
    sleeper = lab.popen("h0", ["sleep", "1000"])
    sleeper.kill()
    assert sleeper.wait(5) == -9
    print("done")
"""


@pytest.fixture
def readable_python() -> Iterator[tuple[str, dict[str, str]]]:
    """(python, environment) by which an ordinary user can import fabricpulse; the checkout may be root's alone."""
    if os.geteuid() != 0:
        yield sys.executable, dict(os.environ)
        return
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not on PATH")
    python = next((path for path in ("/usr/bin/python3", sys.executable) if usable(path)), None)
    if python is None:
        pytest.skip("no Python of this version that an ordinary user can run")
    with tempfile.TemporaryDirectory(prefix="fabricpulse-test-") as directory:
        for package in (fabricpulse.core, fabricpulse.lab):
            for portion in package.__path__:
                name = package.__name__.rpartition(".")[2]
                shutil.copytree(portion, Path(directory) / "fabricpulse" / name, dirs_exist_ok=True)
        # A native module of core lies where the build has put it.
        native = Path(str(_atomic.__file__))
        shutil.copy(native, Path(directory) / "fabricpulse" / "core" / native.name)
        for name in ("msgspec", "yaml"):
            shutil.copytree(Path(sysconfig.get_path("platlib")) / name, Path(directory) / name)
        subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
        yield python, {"PATH": os.environ["PATH"], "PYTHONPATH": directory, "HOME": "/"}


def usable(python: str) -> bool:
    """True when an ordinary user can run this Python and it is the version of this one."""
    script = "import sys; print(sys.version_info[:2])"
    done = subprocess.run(
        [*AS_NOBODY, python, "-c", script], capture_output=True, text=True, check=False, cwd="/"
    )
    return done.stdout.strip() == str(sys.version_info[:2])


def test_a_lab_without_root(readable_python: tuple[str, dict[str, str]]) -> None:
    """An ordinary user gets the whole lab: hosts, rails, processes, faults."""
    python, env = readable_python
    prefix = AS_NOBODY if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*prefix, python, "-c", SCRIPT], capture_output=True, text=True, check=False, cwd="/", env=env
    )
    if "UserError: the lab needs root or user namespaces" in done.stderr:
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
        keeper._unshare_all()
    assert "\n" not in str(raised.value)


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without iproute2 and nftables the error names the programs and the packages."""
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool != "ip" else "/sbin/ip")
    with pytest.raises(UserError, match=r"needs tc and nft, .* install iproute2 and nftables"):
        fabricpulse.lab.Lab().start()
