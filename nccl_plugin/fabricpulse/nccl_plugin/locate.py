"""Where the native parts of the plugin are installed."""

from pathlib import Path

import fabricpulse.nccl_plugin as package
from fabricpulse.core.errors import UserError

LIBRARY = "libnccl-net-fabricpulse.so"
RING = "fabricpulse-ring"


def find(name: str) -> Path:
    """The installed file `name`. Raises UserError when the package was built without the plugin."""
    for portion in package.__path__:
        for folder in ("", "lib", "bin"):
            candidate = Path(portion) / folder / name
            if candidate.is_file():
                return candidate.resolve()
    raise UserError(
        f"{name} is not installed beside {next(iter(package.__path__))}: "
        "this fabricpulse was built without its NCCL plugin; run `make build` or install the Linux wheel"
    )


def library() -> Path:
    """`libnccl-net-fabricpulse.so`, which NCCL loads."""
    return find(LIBRARY)
