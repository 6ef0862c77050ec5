"""Files for launchers and schedulers: each says of each rank what the order says."""

import random
import re
import shlex

import numpy as np
import pytest
from tests.fixtures.placement.cases import random_places

from fabricpulse.core.errors import UserError
from fabricpulse.placement.fabric import Place, fabric_of
from fabricpulse.placement.formats.kubernetes import order_lines, place_lines
from fabricpulse.placement.formats.names import plain_names
from fabricpulse.placement.formats.openmpi import rankfile
from fabricpulse.placement.formats.ranks import by_host, by_rank, format_ranks, is_contiguous
from fabricpulse.placement.formats.slurm import hostfile, read_topology_conf, topology_conf
from fabricpulse.placement.places import declarations, places

PLACES = [
    Place("gpu-1", ("leaf 1",), ("pod-a",), 2),
    Place("gpu-2", ("leaf 2",), ("pod-b",), 2),
    Place("gpu-10", ("leaf 1",), ("pod-a",), 2),
    Place("odd;host", ("unknown-odd",), ("unknown-odd",), 2, known=False),
]
# In tree order: gpu-1, gpu-10, gpu-2, odd;host.
SLOT_OF = np.array([2, 4, 0, 5, 1, 6, 3, 7], dtype=np.int32)


def test_where_each_rank_is() -> None:
    """Hosts by their lowest rank; the n-th rank of a host has GPU n."""
    hosts = by_host(fabric_of(PLACES), SLOT_OF)
    assert [(each.place.host, each.ranks) for each in hosts] == [
        ("gpu-10", (0, 6)),
        ("gpu-2", (1, 3)),
        ("gpu-1", (2, 4)),
        ("odd;host", (5, 7)),
    ]
    assert by_rank(hosts)[:4] == [("gpu-10", 0), ("gpu-2", 0), ("gpu-1", 0), ("gpu-2", 1)]
    assert not is_contiguous(hosts)
    assert is_contiguous(by_host(fabric_of(PLACES), np.arange(8, dtype=np.int32)))
    assert format_ranks((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"


def test_slurm_hostfile_and_rankfile() -> None:
    """Line n is the host of rank n; cores of a rank are its own on its host."""
    hosts = by_host(fabric_of(PLACES), SLOT_OF)
    assert hostfile(hosts).splitlines()[:3] == ["gpu-10", "gpu-2", "gpu-1"]
    lines = rankfile(hosts, 12).splitlines()
    assert lines[0] == "rank 0=gpu-10 slot=0-11"
    assert lines[6] == "rank 6=gpu-10 slot=12-23"
    assert rankfile(hosts, 1).splitlines()[6] == "rank 6=gpu-10 slot=1"
    used = [re.fullmatch(r"rank (\d+)=(\S+) slot=(\S+)", line).groups() for line in lines]  # type: ignore[union-attr]
    assert [int(rank) for rank, _, _ in used] == list(range(8))
    assert len({(host, slot) for _, host, slot in used}) == 8


def test_kubernetes() -> None:
    """Names are quoted, labels are words, unknown places lose their labels, the index sorts."""
    lines = list(place_lines(PLACES))
    assert lines[0] == (
        "kubectl label --overwrite node gpu-1 fabricpulse.io/leaf=leaf-1 fabricpulse.io/fabric-pod=pod-a"
    )
    assert shlex.split(lines[3])[4:] == ["odd;host", "fabricpulse.io/leaf-", "fabricpulse.io/fabric-pod-"]
    lines = list(order_lines(by_host(fabric_of(PLACES), SLOT_OF)))
    assert lines[0].endswith("node gpu-10 fabricpulse.io/placement-index=0")
    assert lines[1].endswith("node gpu-10 fabricpulse.io/placement-ranks=0,6")


def test_topology_conf() -> None:
    """Leaves with hosts, pods with leaves, one switch that joins all; an unknown host is near nobody."""
    assert list(topology_conf(PLACES))[1:] == [
        "SwitchName=leaf-1 Nodes=gpu-[1,10]",
        "SwitchName=leaf-2 Nodes=gpu-2",
        "SwitchName=unknown-odd Nodes=odd;host",
        "SwitchName=pod-a Switches=leaf-1",
        "SwitchName=pod-b Switches=leaf-2",
        "SwitchName=fabric Switches=pod-a,pod-b,unknown-odd",
    ]
    flat = [Place("a1", ("x",), ("",)), Place("a2", ("x",), ("",)), Place("a3", ("y",), ("",))]
    assert list(topology_conf(flat))[1:] == [
        "SwitchName=x Nodes=a[1-2]",
        "SwitchName=y Nodes=a3",
        "SwitchName=fabric Switches=x,y",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_topology_conf_is_read_back(seed: int) -> None:
    """What is written for Slurm puts the same hosts below one leaf, and in one pod, when it is read."""
    before = random_places(random.Random(seed), 12, 8)
    file = read_topology_conf(list(topology_conf(before)), "topology.conf")
    after = {each.host: each for each in places(declarations(file), (), 8)}
    assert set(after) == {each.host for each in before}
    pods = len({each.pod() for each in before if each.known}) > 1
    for one in before:
        for other in before:
            same = after[one.host].leaf() == after[other.host].leaf()
            assert same == (one.leaf() == other.leaf())
            if pods and one.known and other.known and file.pods:
                assert (after[one.host].pod() == after[other.host].pod()) == (one.pod() == other.pod())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a", "t:1"),
        ("BlockName=b Nodes=n1", "t:1"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "t:2: switch a is listed twice"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1", "two leaves"),
        ("SwitchName=s Switches=a\nSwitchName=t Switches=a", "t:2: a is below s and t"),
        ("SwitchName=a Nodes=n[1", "bracket"),
    ],
)
def test_wrong_topology_conf(text: str, message: str) -> None:
    """What is wrong and where."""
    with pytest.raises(UserError, match=message):
        read_topology_conf(text.splitlines(), "t")


def test_slurms_own_example() -> None:
    """Comments, case of keys, speeds, more levels than two."""
    text = """
    # a comment
    switchname=s0 nodes=tux[0-2] LinkSpeed=900
    SwitchName=s1 Nodes=tux[3-5]  # another
    SwitchName=s2 Nodes=tux[6-8]
    SwitchName=s3 Switches=s[0-1]
    SwitchName=s4 Switches=s2
    SwitchName=top Switches=s[3-4]
    """
    found = {
        each.host: each for each in places(declarations(read_topology_conf(text.splitlines(), "t")), (), 8)
    }
    assert found["tux0"].leaf() == found["tux2"].leaf() == "s0"
    assert found["tux0"].pod() == found["tux5"].pod() == "s3"
    assert found["tux8"].pod() == "s4"


def test_names_that_would_be_one() -> None:
    """Two switches never share a label."""
    assert plain_names(["leaf/1", "leaf-2"]) == {"leaf/1": "leaf-1", "leaf-2": "leaf-2"}
    for names in (["a b", "a/b"], ["???"], ["x" * 63 + "1", "x" * 63 + "2"]):
        with pytest.raises(UserError):
            plain_names(names)
