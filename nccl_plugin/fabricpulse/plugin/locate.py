"""Where the native parts of the plugin are installed."""

import sysconfig
from pathlib import Path

import fabricpulse.plugin as package
from fabricpulse.core.errors import UserError

LIBRARY = "libnccl-net-fabricpulse.so"
RING = "fabricpulse-ring"


def library() -> Path:
    """`libnccl-net-fabricpulse.so`, which NCCL loads. Raises UserError when it is not installed."""
    return _first(LIBRARY, [Path(portion) for portion in package.__path__])


def ring() -> Path:
    """`fabricpulse-ring`, installed beside the `fabricpulse` command. Raises UserError when it is not installed."""
    return _first(RING, [Path(sysconfig.get_path("scripts"))])


def _first(name: str, folders: list[Path]) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise UserError(
        f"{name} is not installed in {folders[0]}: this fabricpulse was built without its NCCL plugin; "
        "run `make build` or install the Linux wheel"
    )
