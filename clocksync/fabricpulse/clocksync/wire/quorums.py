"""The quorums in the replies of several coordinators, as one."""

from collections.abc import Iterable

from fabricpulse.clocksync.wire.messages import Quorum
from fabricpulse.clocksync.wire.report_table import name_hash

# Quorums of one round differ by less: coordinators do not solve at the same moment, and moments are whole seconds.
SAME_ROUND_S = 2


def merge_quorums(quorums: Iterable[Quorum | None]) -> Quorum | None:
    """The latest of `quorums`; where several are of one round, the most hosts and one root, the same for everybody.

    Two coordinators of one fleet may begin with two roots. Hosts that report to both pass this on to both.
    """
    known = [quorum for quorum in quorums if quorum is not None]
    if not known:
        return None
    latest = max(quorum.moment_s for quorum in known)
    same = [quorum for quorum in known if quorum.moment_s >= latest - SAME_ROUND_S]
    root = min((quorum.root for quorum in same), key=name_hash)
    return Quorum(latest, max(q.hosts for q in same), root, any(q.anchored for q in same))
