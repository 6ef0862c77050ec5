"""Where the processes of one host meet: `/run/fabricpulse`, or `FABRICPULSE_RUN_DIR`."""

import errno
import os
from pathlib import Path

from fabricpulse.core.errors import TemporaryError, UserError

RUN_DIR_ENV = "FABRICPULSE_RUN_DIR"
DEFAULT_RUN_DIR = Path("/run/fabricpulse")


def run_dir() -> Path:
    """The run directory of this host (it may not exist yet)."""
    return Path(os.environ.get(RUN_DIR_ENV) or DEFAULT_RUN_DIR)


def ensure_run_dir() -> Path:
    """The run directory, created with mode 0755 if absent.

    Raises UserError when it cannot be created.
    """
    path = run_dir()
    try:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755)  # whatever the umask: jobs of other users read the clock page
    except OSError as error:
        raise UserError(
            f"cannot create the run directory {path}: {error.strerror}; run as root or set {RUN_DIR_ENV}"
        ) from error
    return path


def write_refused(what: str, path: Path, error: OSError, chosen_by: str = RUN_DIR_ENV) -> UserError:
    """The error for `what` that cannot be written at `path`, with what to do about it. chosen_by : what another
    directory than this one is chosen with.
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full:
        remedy = f"make room on the file system of {path.parent}"
    else:
        remedy = f"make {path.parent} writable for this user, run as root"
    return (TemporaryError if full else UserError)(
        f"cannot write {what} {path}: {error.strerror}; {remedy}, or set {chosen_by} to another directory"
    )


def clock_page_path() -> Path:
    """The clock page, written by the clocksync sidecar."""
    return run_dir() / "clock"


def probe_ring_path() -> Path:
    """The probe samples, written by the probe engine."""
    return run_dir() / "probes"


def plugin_dir() -> Path:
    """`<name>.telemetry` and `<name>.sock` of each process with the NCCL plugin; names: plugin_ipc/process.py."""
    return run_dir() / "plugin"
