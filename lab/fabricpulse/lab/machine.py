"""What a lab needs of this machine: programs, a directory."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.lab.channel import LabUnavailableError

DIRECTORY_PREFIX = "fabricpulse-lab-"

# AF_UNIX paths end at 107 bytes, and `<lab>/h199/run/plugin/4194304-ffffffff.sock` must fit.
_DIRECTORY_MAX = 60


def require_tools() -> None:
    """Raises LabUnavailableError that says what this machine lacks."""
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [tool for tool in ("ip", "tc", "nft") if shutil.which(tool, path=search) is None]
    if missing:
        raise LabUnavailableError(
            f"the lab needs {' and '.join(missing)}, not found on PATH: install iproute2 and nftables "
            "(Debian: apt-get install iproute2 nftables)"
        )
    if sys.platform != "linux":
        raise LabUnavailableError("the lab is made of Linux network namespaces and cannot run on this system")


def make_directory(given: Path | None) -> Path:
    """The lab's directory: `given`, or a new one in the system's temporary directory. Raises UserError."""
    if given is not None:
        directory = given.resolve()
        if (directory / "lab.json").exists():
            raise UserError(
                f"{directory} already holds a lab or what is left of one: choose another directory"
            )
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the lab's directory {directory}: {error.strerror}") from error
    else:
        base = tempfile.gettempdir()
        if len(base) + len(DIRECTORY_PREFIX) + 8 > _DIRECTORY_MAX:
            base = "/tmp"  # noqa: S108 - mkdtemp is safe there
        directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=base))
        directory.chmod(0o755)
    if len(str(directory)) > _DIRECTORY_MAX:
        raise UserError(
            f"the lab's directory {directory} is too long for the Unix sockets in it: "
            f"choose a path of at most {_DIRECTORY_MAX} characters"
        )
    return directory
