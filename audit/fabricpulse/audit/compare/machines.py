"""Which hosts of a role are the same machine: what follows from hardware is compared among those alone. Pure.

Theory of operation. A machine is a board, a model of CPU, and the models of GPUs and of RDMA devices; their numbers do
not count, so that a host that has lost some is compared with its like. A kind of machine that enough hosts are is
meant: a fleet may have several. A host that differs from all of these in one part is one of them with another part,
which is odd; one that differs in more is another machine, and of its hardware no more than that is known.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fabricpulse.audit.model import Value

PARTS = ("board", "cpu_model", "gpus", "rdma_devices")
# Hosts of one role that make a kind of machine: fewer than these, or than this share of the role, are odd hosts.
LEAST_HOSTS, LEAST_SHARE = 3, 0.05
# Names of machines: of a host that is none of the kinds of its role; of the kind that most are.
OTHER, MOST_FREQUENT = "other", "000"

_Parts = tuple[frozenset[str], ...]


def machines_of(values: Mapping[str, Iterable[Value]]) -> dict[str, str]:
    """host -> its machine, the same text for the same one: "" of a role without kinds of machines, OTHER of a host
    that is none of its role's, MOST_FREQUENT of the kind that most are."""
    roles: dict[str, dict[str, _Parts]] = {}
    for host, own in values.items():
        of_host = {value.attribute: value for value in own if not value.subject}
        role = next((value.role for value in of_host.values()), "")
        roles.setdefault(role, {})[host] = tuple(
            _models(of_host[name].value if name in of_host else "") for name in PARTS
        )
    found: dict[str, str] = {}
    for hosts in roles.values():
        kinds = _kinds(hosts)
        found |= {host: _nearest(parts, kinds) for host, parts in hosts.items()}
    return found


def _models(text: str) -> frozenset[str]:
    """What a value names without how many of it there are; nothing where there is none or it is not known."""
    return frozenset(re.sub(r"^[0-9]+ x ", "", part) for part in text.split(", ") if part not in ("", "none"))


def _kinds(hosts: Mapping[str, _Parts]) -> Sequence[_Parts]:
    """The kinds of machines of a role, most frequent first. What lacks parts of a more frequent one is no kind, and
    counts for that one."""
    counts = Counter(hosts.values())
    least = max(LEAST_HOSTS, math.ceil(LEAST_SHARE * len(hosts)))
    found: list[_Parts] = []
    for parts in sorted(counts, key=lambda parts: (-counts[parts], -sum(map(len, parts)), _text(parts))):
        count = sum(others for other, others in counts.items() if _lacks(other, parts))
        enough = count >= least or 2 * count > len(hosts)
        if enough and any(parts) and not any(_lacks(parts, kind) for kind in found):
            found.append(parts)
    return found


def _text(parts: _Parts) -> list[list[str]]:
    return [sorted(part) for part in parts]


def _lacks(parts: _Parts, kind: _Parts) -> bool:
    """Whether the one is the other without some of its devices, or without telling of them."""
    return all(own <= other for own, other in zip(parts, kind, strict=True))


def _nearest(parts: _Parts, kinds: Sequence[_Parts]) -> str:
    if not kinds:
        return ""
    apart = [
        sum(not own <= other for own, other in zip(parts, kind, strict=True)) + (0 if parts == kind else 0.5)
        for kind in kinds
    ]
    best = min(range(len(kinds)), key=apart.__getitem__)
    return f"{best:03}" if apart[best] < 2 else OTHER
