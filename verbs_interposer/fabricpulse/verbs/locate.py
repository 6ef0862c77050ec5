"""Where the interposer is installed."""

from pathlib import Path

import fabricpulse.verbs as package
from fabricpulse.core.errors import UserError

PRELOAD = "libfabricpulse-verbs.so"
# Named as what NCCL opens, in a folder of its own.
FOR_NCCL = "nccl/libibverbs.so"


def preload_library() -> Path:
    """The library for LD_PRELOAD. Raises UserError when it is not installed."""
    return _find(PRELOAD)


def nccl_library() -> Path:
    """The copy that NCCL opens in the place of libibverbs. Raises UserError when it is not installed."""
    return _find(FOR_NCCL)


def _find(name: str) -> Path:
    folders = [Path(portion) for portion in package.__path__]
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise UserError(
        f"{name} is not installed in {folders[0]}: this fabricpulse was built without its verbs interposer; "
        "run `make build` or install the Linux wheel"
    )
