"""Open MPI: a rankfile. Pure.

`rank N=host slot=first-last`, cores by their logical index on the host (Open MPI 4: mpirun(1), `--rankfile`; 5: PRRTE,
`--map-by rankfile:file=…`).
"""

from collections.abc import Iterable

from fabricpulse.placement.formats.ranks import HostRanks, by_rank


def rankfile(hosts: Iterable[HostRanks], cores: int) -> str:
    """One line a rank, each with `cores` cores of its own: those of GPU n are n * cores and up."""

    def slot(gpu: int) -> str:
        first = gpu * cores
        return f"{first}-{first + cores - 1}" if cores > 1 else f"{first}"

    lines = (f"rank {rank}={host} slot={slot(gpu)}\n" for rank, (host, gpu) in enumerate(by_rank(hosts)))
    return "".join(lines)
