"""The variables that load the interposer into a program. Pure."""

import enum
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class Program(enum.Enum):
    """How a program finds libibverbs."""

    LINKED = "linked"
    NCCL = "nccl"
    NCCL_OLD = "nccl-old"


@dataclass(frozen=True)
class Variable:
    """One variable. prepended : goes before what it has, with `separator` between."""

    name: str
    value: str
    separator: str = ""

    def resolve(self, environment: Mapping[str, str]) -> str:
        """Its value for a program that has this environment now; unchanged when it is there already."""
        present = environment.get(self.name, "")
        if not self.separator or not present:
            return self.value
        if self.value in present.split(self.separator):
            return present
        return f"{self.value}{self.separator}{present}"


def variable(program: Program, preload: Path, nccl: Path) -> Variable:
    """What loads the interposer. preload, nccl : the two libraries."""
    if program is Program.LINKED:
        return Variable("LD_PRELOAD", str(preload), ":")
    if program is Program.NCCL:
        return Variable("NCCL_IBVERBS_LIB", str(nccl))
    return Variable("LD_LIBRARY_PATH", str(nccl.parent), ":")


def render(wanted: Variable, environment: Mapping[str, str], *, export: bool) -> str:
    """A line for eval (export), or for a file of variables."""
    value = wanted.resolve(environment)
    return f"export {wanted.name}={shlex.quote(value)}" if export else f"{wanted.name}={value}"
