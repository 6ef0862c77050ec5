"""Which switches and links are known to be faulty, by the names that were given. Pure."""

from collections.abc import Iterable

from fabricpulse.diagnosis.flows.components import Kind, code
from fabricpulse.diagnosis.flows.layout import Layout
from fabricpulse.diagnosis.flows.names import Names
from fabricpulse.diagnosis.search.suspect import Suspect

# A suspect that was found for so long is known to be faulty.
_KNOWN_S = 5.0
# One that was not found for so long, while something else explains what it suffered, is replaced by that.
REPLACED_S = 1.2


def known_faults(
    reported: Iterable[tuple[float, float, Suspect]], layout: Layout, switches: Names, now_s: float
) -> list[int]:
    """Components that have lost packets under a name for some seconds: another one that would explain, too, what they
    lose is not more probable for that. reported : when each was found first and last, monotonic seconds. switches :
    names of those that answer.
    """
    found = []
    for since_s, last_s, suspect in reported:
        if suspect.what != "loss" or last_s - since_s < _KNOWN_S or now_s - last_s > REPLACED_S:
            continue
        if suspect.kind == "switch" and (node := _node(layout, switches, suspect.component)) >= 0:
            found.append(code(Kind.SWITCH, node))
        if suspect.kind == "link":
            near, far = (_node(layout, switches, name) for name in (suspect.component, suspect.peer))
            if min(near, far) >= 0:
                found.append(code(Kind.LINK, near, far))
    return found


def _node(layout: Layout, switches: Names, name: str) -> int:
    """The node of a switch that answers, -1 for another one."""
    node = layout.table.first_switch + switches.find(name)
    known = node < len(layout.names) and layout.names[node] == name
    return node if known else -1
