"""The quorums in the replies of several coordinators, as one."""

from collections.abc import Iterable

from fabricpulse.clocksync.wire.messages import Quorum
from fabricpulse.clocksync.wire.report_table import name_hash

# Quorums of one round differ by less: coordinators do not solve at the same moment, and moments are whole seconds.
SAME_ROUND_S = 2


def merge_quorums(quorums: Iterable[Quorum | None]) -> Quorum | None:
    """The latest of `quorums`; where several are of one round, the most hosts and one root, the same for everybody,
    and if they differ in it an odd number of hosts (Quorum).
    """
    known = [quorum for quorum in quorums if quorum is not None]
    if not known:
        return None
    latest = max(quorum.moment_s for quorum in known)
    same = [quorum for quorum in known if quorum.moment_s >= latest - SAME_ROUND_S]
    roots = {quorum.root for quorum in same}
    hosts = max(quorum.hosts for quorum in same) | (len(roots) > 1)
    return Quorum(latest, hosts, min(roots, key=name_hash), any(quorum.anchored for quorum in same))
