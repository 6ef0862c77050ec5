"""To which hosts a run is restricted. Pure."""

from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.host_list import expand_lines


def chosen(text: str | None) -> list[str]:
    """The hosts that a run is restricted to; [] where None says that it is not.

    A list that was given and is empty is refused: a Slurm variable outside of a job, a label that no node has. Taken
    for "all" it would test a whole fleet by mistake. Each line may begin with `node/`. Raises UserError.
    """
    if text is None:
        return []
    found = expand_lines(text)
    if not found:
        raise UserError("host list: it is empty; without --hosts all hosts of the fleet are audited")
    return found
