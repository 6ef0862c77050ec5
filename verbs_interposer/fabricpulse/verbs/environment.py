"""The variables that load the interposer into a program. Pure."""

import enum
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class Format(enum.StrEnum):
    """How the variable is printed; the same words as those of `fabricpulse plugin env`.

    shell : for eval. slurm : `export NAME=VALUE` with the value as it is, which is how a TaskProlog is read. env :
    `NAME=VALUE`, for env files.
    """

    SHELL = "shell"
    SLURM = "slurm"
    ENV = "env"


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


def render(wanted: Variable, environment: Mapping[str, str], format_: Format) -> str:
    """One line."""
    value = wanted.resolve(environment)
    if format_ is Format.SHELL:
        return f"export {wanted.name}={shlex.quote(value)}"
    return f"export {wanted.name}={value}" if format_ is Format.SLURM else f"{wanted.name}={value}"
