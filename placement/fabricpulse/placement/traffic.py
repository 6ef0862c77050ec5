"""How many bytes each rank sends to each other in a step: from the shape of a job, or measured. Pure.

Formulas, with n members of a group and S bytes handed to its collectives by each rank and step:

- ring all-reduce: each sends 2 (n - 1) / n * S to the next of the ring (Patarasuk and Yuan, 2009; the factor is that
  of bus bandwidth in nccl-tests' PERFORMANCE.md). Reduce-scatter and all-gather send half of it each, so that a
  sharded optimizer and sequence parallelism come to the same.
- all-to-all: each sends S / n to each other member.
- pipeline: each stage sends S to the next, and gets as many gradients back.
"""

from dataclasses import dataclass

import numpy as np

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.placement.fabric import Floats, Ints, sums
from fabricpulse.placement.shape import Shape

MOST_PAIRS = 8_000_000
MOST_BYTES = 1e18


@dataclass(frozen=True)
class Traffic:
    """Bytes a step of ordered pairs of ranks. source, target, size : one element a pair, each pair once, sorted."""

    ranks: int
    source: Ints
    target: Ints
    size: Floats

    def total(self) -> float:
        """Bytes a step of all pairs."""
        return float(self.size.sum())


def traffic_of(ranks: int, source: Ints, target: Ints, size: Floats) -> Traffic:
    """Adds up what is listed twice, leaves out what a rank sends to itself. Raises UserError for other than numbers of
    bytes or ranks that do not exist."""
    if len(source) and (min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= ranks):
        raise UserError(f"traffic: it names a rank outside of 0 to {ranks - 1}; give the matrix of this job")
    if not np.all(np.isfinite(size)) or np.any(size < 0) or np.any(size > MOST_BYTES):
        raise UserError(f"traffic: bytes must be numbers from 0 to {MOST_BYTES:g}")
    keep = (source != target) & (size > 0)
    keys, where = np.unique(source[keep].astype(np.int64) * ranks + target[keep], return_inverse=True)
    added = sums(where, size[keep], len(keys))
    return Traffic(ranks, (keys // ranks).astype(np.int32), (keys % ranks).astype(np.int32), added)


@dataclass(frozen=True)
class Model:
    """What is trained, as far as bytes depend on it. The default is a dense transformer of 70e9 parameters.

    parameters, expert_parameters : of all layers, outside of experts and in them. layers, hidden, sequence : of the
    transformer. micro_batch : sequences of one, of which each data rank has `micro_batches` a step. activation_bytes,
    gradient_bytes : of one number (Megatron-LM reduces gradients in fp32). top_k : experts a token goes to.
    """

    parameters: float = 70e9
    expert_parameters: float = 0.0
    layers: int = 80
    hidden: int = 8192
    sequence: int = 4096
    micro_batch: int = 1
    micro_batches: int = 16
    activation_bytes: int = 2
    gradient_bytes: int = 4
    top_k: int = 2

    def __post_init__(self) -> None:
        for name, most in (("parameters", 1e15), ("expert_parameters", 1e15)):
            if not 0 <= getattr(self, name) <= most:
                raise OptionError(f"model: {name} is {getattr(self, name):g}; it must be 0 to {most:g}")
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise OptionError(f"model: {name} is {getattr(self, name)}; it must be 1 to {most}")

    def payloads(self, shape: Shape) -> dict[str, float]:
        """S of the formulas for each kind of group: bytes that a rank hands to it in a step.

        tensor : per layer and micro-batch four all-reduces of the activations, two forward and two backward (Shoeybi
        et al., Megatron-LM, 2019, section 3). pipeline : per micro-batch the activations, of which each tensor rank
        sends its part (Narayanan et al., 2021, section 4.1). data, expert-data : the gradients of the parameters that
        a rank holds. expert : per layer and micro-batch four all-to-alls (dispatch and combine, forward and backward)
        of each token's copies, shared by the tensor ranks.
        """
        activations = float(self.micro_batch * self.sequence * self.hidden * self.activation_bytes)
        layers = self.layers / shape.pipeline
        held = self.gradient_bytes / (shape.tensor * shape.pipeline)
        experts = 4 * self.top_k * activations / shape.tensor * layers * self.micro_batches
        return {
            "tensor": 4 * activations * layers * self.micro_batches,
            "expert": experts if shape.expert > 1 else 0.0,
            "data": self.parameters * held,
            "expert-data": self.expert_parameters * held / shape.expert,
            "pipeline": activations / shape.tensor * self.micro_batches,
        }


_MOST = {
    "layers": 100_000,
    "hidden": 10_000_000,
    "sequence": 100_000_000,
    "micro_batch": 1_000_000,
    "micro_batches": 10_000_000,
    "activation_bytes": 16,
    "gradient_bytes": 16,
    "top_k": 10_000,
}


def shape_traffic(shape: Shape, payloads: dict[str, float]) -> Traffic:
    """The traffic of a job by the formulas above. payloads : S of each kind. Raises UserError: too many pairs."""
    pairs = shape.ranks * ((shape.expert - 1) * (payloads["expert"] > 0) + 6)
    if pairs > MOST_PAIRS:
        raise UserError(
            f"traffic: {shape.describe()} has some {pairs:,} pairs, at most {MOST_PAIRS:,} can be placed; "
            f"leave experts out (--payload expert=0), whose groups are as large as can be then"
        )
    parts = [_ring(shape.groups(kind), payloads[kind]) for kind in ("tensor", "data", "expert-data")]
    if payloads["expert"] > 0:
        parts.append(_all_to_all(shape.groups("expert"), payloads["expert"]))
    parts.append(_pipeline(shape.groups("pipeline"), payloads["pipeline"]))
    source, target, size = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return traffic_of(shape.ranks, source, target, size)


_Pairs = tuple[Ints, Ints, Floats]


def _ring(groups: Ints, payload: float) -> _Pairs:
    count = groups.shape[1]
    following = np.roll(groups, -1, axis=1)
    return _pairs(groups, following, 2 * (count - 1) / count * payload)


def _all_to_all(groups: Ints, payload: float) -> _Pairs:
    count = groups.shape[1]
    source = np.repeat(groups, count, axis=1)
    target = np.tile(groups, (1, count))
    return _pairs(source, target, payload / count)


def _pipeline(groups: Ints, payload: float) -> _Pairs:
    here, after = groups[:, :-1], groups[:, 1:]
    source = np.concatenate([here, after], axis=1)
    return _pairs(source, np.concatenate([after, here], axis=1), payload)


def _pairs(source: Ints, target: Ints, each: float) -> _Pairs:
    return source.ravel(), target.ravel(), np.full(source.size, each)
