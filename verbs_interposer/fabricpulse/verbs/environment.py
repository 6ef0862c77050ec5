"""The variables that load the interposer into a program. Pure."""

import enum
from pathlib import Path

from fabricpulse.core.environment import Variable

_REASON = "loads the interposer, which counts what the program does with its queue pairs"


class Program(enum.Enum):
    """How a program finds libibverbs."""

    LINKED = "linked"
    NCCL = "nccl"
    NCCL_OLD = "nccl-old"


def variable(program: Program, preload: Path, nccl: Path) -> Variable:
    """What loads the interposer. preload, nccl : the two libraries."""
    if program is Program.LINKED:
        return Variable("LD_PRELOAD", str(preload), _REASON, prepended=True)
    if program is Program.NCCL:
        return Variable("NCCL_IBVERBS_LIB", str(nccl), _REASON)
    return Variable("LD_LIBRARY_PATH", str(nccl.parent), _REASON, prepended=True)
