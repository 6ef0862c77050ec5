"""Command-line options for the job, and the traffic that follows from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from fabricpulse.core.errors import OptionError
from fabricpulse.placement.cost import TIERS, Weights
from fabricpulse.placement.matrix import read_matrix
from fabricpulse.placement.shape import KINDS, ORDERS, Shape
from fabricpulse.placement.traffic import MOST_BYTES, Model, Traffic, shape_traffic

_F = TypeVar("_F", bound=Callable[..., Any])
_MODEL = {name: getattr(Model(), name) for name in Model.__dataclass_fields__}


def job_options(function: _F) -> _F:
    """Adds the options; the command receives them as keywords and gives them to `read_job`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_COUNT = click.IntRange(1)
_OPTIONS = (
    click.option("--tensor", type=_COUNT, help="Ranks of a tensor-parallel group; default 1."),
    click.option("--pipeline", type=_COUNT, help="Stages of the pipeline; default 1."),
    click.option(
        "--data", type=_COUNT, help="Data-parallel ranks; default: as many as the GPUs are enough for."
    ),
    click.option(
        "--expert", type=_COUNT, help="Data-parallel ranks that share the experts of a layer; default 1."
    ),
    click.option(
        "--rank-order",
        type=click.Choice(ORDERS),
        default=ORDERS[0],
        show_default=True,
        help="Which axis changes fastest as the framework counts ranks.",
    ),
    click.option(
        "--model",
        "model_values",
        metavar="NAME=NUMBER",
        multiple=True,
        help=f"What is trained; repeatable. Defaults: {', '.join(f'{k}={v:g}' for k, v in _MODEL.items())}.",
    ),
    click.option(
        "--payload",
        "payload_values",
        metavar="KIND=BYTES",
        multiple=True,
        help=f"Bytes that a rank hands to groups of one kind in a step, instead of the model's: {', '.join(KINDS)}.",
    ),
    click.option(
        "--matrix",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Measured traffic instead of the model's: CSV lines from,to,bytes, or JSON.",
    ),
    click.option(
        "--weight",
        "weight_values",
        metavar="TIER=COST",
        multiple=True,
        help="Cost of a byte by the tier that it crosses; repeatable. Defaults: host=0, leaf=2, pod=4, beyond=6.",
    ),
)


def read_job(
    gpus: int,
    tensor: int | None,
    pipeline: int | None,
    data: int | None,
    expert: int | None,
    rank_order: str,
    model_values: tuple[str, ...],
    payload_values: tuple[str, ...],
    matrix: Path | None,
    weight_values: tuple[str, ...],
) -> tuple[Traffic, Shape | None, Weights]:
    """Traffic of as many ranks as there are GPUs; the shape, unless a matrix alone is given; weights. Raises
    UserError."""
    weights = Weights(**_numbers(weight_values, TIERS, "--weight"))
    weights.array()
    shape = None
    if matrix is None or tensor or pipeline or data or expert:
        shape = _shape(gpus, tensor or 1, pipeline or 1, data, expert or 1, rank_order)
    if matrix is not None:
        if model_values or payload_values:
            raise OptionError("--matrix is measured; leave out --model and --payload")
        return read_matrix(matrix, gpus), shape, weights
    assert shape is not None  # noqa: S101 - there is no matrix
    model = Model(**_integer_counts(_numbers(model_values, tuple(_MODEL), "--model")))
    payloads = model.payloads(shape)
    for kind, size in _numbers(payload_values, KINDS, "--payload").items():
        if not 0 <= size <= MOST_BYTES:
            raise OptionError(f"--payload {kind}: {size:g} bytes; it must be 0 to {MOST_BYTES:g}")
        payloads[kind] = size
    return shape_traffic(shape, payloads), shape, weights


def _shape(gpus: int, tensor: int, pipeline: int, data: int | None, expert: int, order: str) -> Shape:
    if data is None:
        if gpus % (tensor * pipeline):
            raise OptionError(
                f"tensor {tensor} x pipeline {pipeline} does not divide the {gpus} GPUs of the hosts; "
                "take other hosts or another shape"
            )
        data = gpus // (tensor * pipeline)
    shape = Shape(tensor, pipeline, data, expert, order)
    if shape.ranks != gpus:
        raise OptionError(
            f"{shape.describe()} is {shape.ranks} ranks, and the hosts have {gpus} GPUs: both must be the same; "
            "`placement choose` takes hosts for a job"
        )
    return shape


def _numbers(values: tuple[str, ...], names: tuple[str, ...], option: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for value in values:
        name, _, number = value.partition("=")
        if name not in names:
            raise OptionError(f"{option} {value!r}: there is no {name!r}; it is one of {', '.join(names)}")
        if name in found:
            raise OptionError(f"{option}: {name} is given twice")
        try:
            found[name] = msgspec.convert(number, float, strict=False)
        except msgspec.ValidationError:
            raise OptionError(f"{option} {value!r}: {number!r} is no number") from None
    return found


def _integer_counts(values: dict[str, float]) -> dict[str, Any]:
    """Numbers of a model, whole where they are counts."""
    for name, value in values.items():
        if isinstance(_MODEL[name], int) and value != value // 1:
            raise OptionError(f"--model {name}={value:g}: it must be a whole number")
    return {name: int(value) if isinstance(_MODEL[name], int) else value for name, value in values.items()}
