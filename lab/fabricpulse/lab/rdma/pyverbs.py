"""Where pyverbs is: the distribution's package, seen from a virtual environment.

PyPI's wheels bring a libibverbs of their own, which looks for its drivers elsewhere and finds no Soft-RoCE. The
distribution's package is built for the distribution's Python alone.
"""

import importlib
import sys
from pathlib import Path

from fabricpulse.lab.channel import LabUnavailableError

_DISTRIBUTION = Path("/usr/lib/python3/dist-packages")


def require_pyverbs() -> None:
    """Makes `import pyverbs` work. Raises LabUnavailableError that says what to install, or which Python to use."""
    try:
        importlib.import_module("pyverbs.device")
    except ImportError:
        if not (_DISTRIBUTION / "pyverbs").is_dir():
            raise LabUnavailableError(
                "pyverbs is missing: install python3-pyverbs and ibverbs-providers (Debian names), or run "
                "scripts/system_packages.sh rdma as root"
            ) from None
        # Last: nothing else of the distribution may come before what the environment has.
        sys.path.append(str(_DISTRIBUTION))
        try:
            importlib.import_module("pyverbs.device")
        except ImportError as error:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise LabUnavailableError(
                f"the distribution's pyverbs is not for Python {version} ({error}): use the distribution's python3"
            ) from error
