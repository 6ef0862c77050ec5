"""Slurm: the host of each rank for SLURM_HOSTFILE, and topology.conf of the plugin topology/tree. Pure.

SLURM_HOSTFILE with `srun --distribution=arbitrary` puts task n on the host of line n (srun(1)); tasks of a host are
numbered by SLURM_LOCALID in ascending order. Syntax of topology.conf: topology.conf(5).
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.host_list import expand, fold
from fabricpulse.placement.fabric import Place, by_name
from fabricpulse.placement.formats.names import plain_names
from fabricpulse.placement.formats.ranks import HostRanks, by_rank
from fabricpulse.placement.places import PlacesFile

_TOP = "fabric"
_SETTING = re.compile(r"(\w+)=(\S+)")


def hostfile(hosts: Iterable[HostRanks]) -> str:
    """One line a rank."""
    return "".join(f"{host}\n" for host, _ in by_rank(hosts))


def topology_conf(places: Iterable[Place]) -> Iterator[str]:
    """Lines of topology.conf: leaves with their hosts, pods with their leaves, and what joins all.

    Hosts of a rail-optimized fabric hang on several leaves, which Slurm cannot say: hosts that share all leaves are
    below one switch with the names of all. Raises UserError: names that Slurm could not tell apart.
    """
    leaves: dict[tuple[str, str], list[str]] = {}
    for place in sorted(places, key=lambda each: by_name(each.host)):
        leaves.setdefault((place.pod(), place.leaf()), []).append(place.host)
    pods: dict[str, list[str]] = {}
    for pod, leaf in leaves:
        # A host of an unknown place is a leaf and a pod of one name.
        pods.setdefault("" if pod == leaf else pod, []).append(leaf)
    top = pods.pop("", [])
    names = plain_names([*(leaf for _, leaf in leaves), *pods, _TOP], most=250)
    yield "# topology/tree, written by `fabricpulse placement topology`"
    for (_, leaf), hosts in leaves.items():
        yield f"SwitchName={names[leaf]} Nodes={fold(hosts)}"
    for pod, below in pods.items():
        yield f"SwitchName={names[pod]} Switches={fold([names[leaf] for leaf in below])}"
    joined = [names[name] for name in (*pods, *top)]
    if len(joined) > 1:
        yield f"SwitchName={_TOP} Switches={fold(joined)}"


def read_topology_conf(lines: Sequence[str], name: str) -> PlacesFile:
    """Places from a topology.conf: switches with Nodes are leaves, and pods are the switches above them, unless there
    is one alone. Higher switches are all alike. Raises UserError with the line: not the tree plugin's syntax."""
    leaves: dict[str, str] = {}
    parents: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        settings = {key.lower(): value for key, value in _SETTING.findall(text)}
        switch = settings.get("switchname", "")
        if not switch or not ("nodes" in settings or "switches" in settings):
            raise UserError(
                f"{name}:{number}: {text[:60]!r} is no switch of topology/tree; write SwitchName=… with Nodes=… or "
                "Switches=…"
            )
        if "nodes" in settings:
            if switch in leaves:
                raise UserError(f"{name}:{number}: switch {switch} is listed twice; name each once")
            leaves[switch] = settings["nodes"]
        for child in expand(settings.get("switches", "")):
            if (first := parents.setdefault(child, switch)) != switch:
                raise UserError(
                    f"{name}:{number}: {child} is below {first} and {switch}; a tree has one of them"
                )
    pods: dict[str, list[str]] = {}
    for leaf in leaves:
        if leaf in parents:
            pods.setdefault(parents[leaf], []).append(leaf)
    found = PlacesFile(
        leaves=dict(leaves), pods={pod: tuple(below) for pod, below in pods.items()} if len(pods) > 1 else {}
    )
    try:
        found.validate()
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    return found
