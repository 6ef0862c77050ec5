"""A newer QEMU than this machine's, of Debian's backports, authenticated by apt, unpacked into a cache.

QEMU's igb, a NIC with a clock that works (PHC), is in QEMU 10. Nothing is installed: what the package leaves out, this
machine's own QEMU has.
"""

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.lab.rdma.kernel import KEYRING, SuiteOfDebian, cache_folder

_PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")


def qemu_folder() -> Path:
    """Where it is unpacked; its `qemu-system-x86_64` is to be first on PATH."""
    return cache_folder().parent / "qemu"


def fetch_qemu() -> Path:
    """Fetches it unless it is here already; its folder.

    Raises UserError when this machine is no Debian, its mirror is not reached or QEMU does not start.
    """
    target = qemu_folder()
    program = target / "qemu-system-x86_64"
    if program.exists():
        return target
    if not KEYRING.exists() or shutil.which("apt-get") is None:
        raise UserError(f"a newer QEMU comes from Debian's packages: no apt-get, or no {KEYRING}, here")
    with tempfile.TemporaryDirectory(prefix="fabricpulse-qemu-") as name:
        work = Path(name)
        work.chmod(0o755)
        SuiteOfDebian(work, f"{_codename()}-backports").unpack(list(_PACKAGES), work / "root")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "root", target / "root", symlinks=True)
    root = target / "root" / "usr"
    words: list[str | Path] = [root / "bin" / "qemu-system-x86_64"]
    for folder in (root / "share" / "qemu", root / "share" / "seabios"):
        words += ["-L", folder, "-L", Path("/usr/share") / folder.name]
    [modules] = root.glob("lib/*/qemu")
    program.write_text(
        f'#!/bin/sh\nQEMU_MODULE_DIR={shlex.quote(str(modules))} exec {shlex.join(str(word) for word in words)} "$@"\n'
    )
    program.chmod(0o755)
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(target)
        raise UserError(f"QEMU of the backports does not start here: {' '.join(done.stderr.split())[-300:]}")
    return target


def _codename() -> str:
    for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key == "VERSION_CODENAME":
            return value.strip('"')
    raise UserError("/etc/os-release has no VERSION_CODENAME")
