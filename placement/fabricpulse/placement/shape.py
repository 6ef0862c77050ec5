"""The shape of a job: its parallel groups, and the order in which ranks are assigned to them. Pure."""

from dataclasses import dataclass

import numpy as np

from fabricpulse.core.errors import OptionError
from fabricpulse.placement.fabric import MOST_RANKS, Ints

KINDS = ("tensor", "expert", "data", "expert-data", "pipeline")
# Which axis changes fastest as ranks are counted. The ranks of a tensor group are neighbours in both.
ORDERS = ("tp-dp-pp", "tp-pp-dp")


@dataclass(frozen=True)
class Shape:
    """How many ranks there are along each axis, as Megatron-LM, DeepSpeed and their like number them.

    tensor, pipeline, data : ranks = tensor * pipeline * data. expert : ranks over which the experts of a layer are
    spread, `expert` neighbours on the data axis; 1 without experts. order : one of ORDERS; tp-dp-pp is Megatron-LM's
    and DeepSpeed's, tp-pp-dp Megatron-LM's --use-tp-pp-dp-mapping.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    order: str = "tp-dp-pp"

    def __post_init__(self) -> None:
        for axis in ("tensor", "pipeline", "data", "expert"):
            if not 1 <= getattr(self, axis) <= MOST_RANKS:
                raise OptionError(f"shape: {axis} is {getattr(self, axis)}; it must be 1 to {MOST_RANKS}")
        if self.ranks > MOST_RANKS:
            raise OptionError(f"shape: {self.describe()} is {self.ranks} ranks; {MOST_RANKS} can be placed")
        if self.data % self.expert:
            raise OptionError(
                f"shape: {self.expert} expert ranks do not divide the {self.data} data ranks that hold them"
            )
        if self.order not in ORDERS:
            raise OptionError(f"shape: unknown order {self.order!r}; it is one of {', '.join(ORDERS)}")

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return self.tensor * self.pipeline * self.data

    def describe(self) -> str:
        """The sizes of the axes as text."""
        experts = f" (expert {self.expert})" if self.expert > 1 else ""
        return f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}{experts}"

    def grid(self) -> Ints:
        """Ranks by (pipeline, outer data, expert, tensor)."""
        sizes = {"tp": self.tensor, "dp": self.data, "pp": self.pipeline}
        slowest_first = self.order.split("-")[::-1]
        ranks = np.arange(self.ranks, dtype=np.int32).reshape([sizes[axis] for axis in slowest_first])
        ordered = ranks.transpose([slowest_first.index(axis) for axis in ("pp", "dp", "tp")])
        return ordered.reshape(self.pipeline, self.data // self.expert, self.expert, self.tensor)

    def groups(self, kind: str) -> Ints:
        """The groups of one of KINDS, one a row, ranks in the order of their ring: ascending along the axis.

        data : who hold the same parameters outside of experts; expert-data : the same experts.
        """
        grid = self.grid()
        length, last = {
            "tensor": (self.tensor, (0, 1, 2, 3)),
            "expert": (self.expert, (0, 1, 3, 2)),
            "data": (self.data, (0, 3, 1, 2)),
            "expert-data": (self.data // self.expert, (0, 2, 3, 1)),
            "pipeline": (self.pipeline, (1, 2, 3, 0)),
        }[kind]
        return grid.transpose(last).reshape(-1, length)
