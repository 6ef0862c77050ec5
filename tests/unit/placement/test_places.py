"""Where hosts are: files of places, topology files, the membership; what is not declared."""

import pytest

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError, OptionError
from fabricpulse.core.fleet.membership import Host, Membership, Nic
from fabricpulse.placement.fabric import Place, by_name, fabric_of
from fabricpulse.placement.places import PlacesFile, declarations, notes, places, without

FILE = """
leaves:
  leaf-1: gpu-[1-2]
  leaf-2: [gpu-3, "gpu-[4-5]"]
pods:
  pod-a: [leaf-1]
  pod-b: [leaf-2]
gpus:
  gpu-[4-5]: 4
"""


def read(text: str) -> PlacesFile:
    return parse_config(text, PlacesFile, "places.yaml")


def test_a_file_of_places() -> None:
    """Lists in Slurm's notation, pods, numbers of GPUs; all hosts if none is named."""
    found = places(declarations(read(FILE)), (), 8)
    assert [(each.host, each.leaf(), each.pod(), each.gpus) for each in found] == [
        ("gpu-1", "leaf-1", "pod-a", 8),
        ("gpu-2", "leaf-1", "pod-a", 8),
        ("gpu-3", "leaf-2", "pod-b", 8),
        ("gpu-4", "leaf-2", "pod-b", 4),
        ("gpu-5", "leaf-2", "pod-b", 4),
    ]
    assert notes(found) == []


def test_a_topology_file() -> None:
    """The coordinator's, with the leaf of each NIC: the NICs of a host in the order of their names are its rails."""
    text = "leaves:\n  a: [h1/eth10, h2/eth10]\n  b: [h1/eth9, h2/eth9]\nswitches:\n  s: [10.0.0.1]\n"
    [first, second] = places(declarations(read(text)), ["h1", "h2.example.com"], 4)
    assert first.leaves == second.leaves == ("b", "a")
    assert second.host == "h2"
    fabric = fabric_of([first, second])
    assert fabric.leaf.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_the_membership() -> None:
    """`leaf` of its NICs; a NIC without one, as of the front-end network, says nothing. The file counts more."""
    nics = (
        Nic(device="eth0", address="10.0.0.1", network="front"),
        Nic(device="eth1", address="10.1.0.1", network="rail0", leaf="leaf-x"),
    )
    other = Nic(device="eth1", address="10.1.0.2", network="rail0", leaf="leaf-x")
    membership = Membership(
        hosts=(Host(name="gpu-1.example.com", nics=nics), Host(name="gpu-9", nics=(other,)))
    )
    found = {each.host: each for each in places(declarations(PlacesFile(), membership), (), 8)}
    assert found["gpu-1.example.com"].leaves == ("leaf-x",)
    found = {each.host: each for each in places(declarations(read(FILE), membership), (), 8)}
    assert found["gpu-1.example.com"].leaf() == "leaf-1"
    assert found["gpu-9"].leaf() == "leaf-x"


def test_unknown_places() -> None:
    """A host that no file declares is a leaf and a pod of its own, near to no other, and a note says so."""
    found = places(declarations(read(FILE)), ["gpu-1", "gpu-77", "gpu-78"], 8)
    assert [each.known for each in found] == [True, False, False]
    assert len({each.leaf() for each in found}) == len({each.pod() for each in found}) == 3
    assert "2 hosts" in notes(found)[0]
    assert "gpu-77, gpu-78" in notes(found)[0]
    # In a fabric without pods it is a leaf like others.
    found = places(declarations(read("leaves: {a: h1}")), ["h1", "h2"], 8)
    assert [each.pod() for each in found] == ["", ""]


def test_rail_optimized() -> None:
    """One leaf stands for a switch a rail."""
    [first, *_] = places(declarations(read(FILE)), ["gpu-4"], 8, rail_leaves=True)
    assert first.leaves == ("leaf-2/0", "leaf-2/1", "leaf-2/2", "leaf-2/3")


def test_excluded() -> None:
    """By short or full name, in any case; others stay."""
    found = [Place(name, ("l",), ("",)) for name in ("a", "b.x", "c", "d")]
    assert [each.host for each in without(found, ["A", "b", "c.x.y", "zz"])] == ["d"]


def test_a_host_twice() -> None:
    """Also by its short and its full name."""
    for hosts in (["gpu-1", "gpu-1"], ["gpu-1", "gpu-1.example.com"], ["x", "x"]):
        with pytest.raises(OptionError, match="twice"):
            places(declarations(read(FILE)), hosts, 8)
    with pytest.raises(OptionError, match="no host"):
        places(declarations(PlacesFile()), (), 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leaves: {a: h1, b: h1}", "h1 is below two leaves, a and b"),
        ("leaves: {a: [h1/e0], b: [h1/e0]}", "h1/e0 is below two leaves"),
        ("leaves: {a: [h1/e0, h1]}", "once by its name and once by a NIC"),
        ("leaves: {a: h1}\npods: {p: [b]}", "no leaf of this file"),
        ("leaves: {a: h1}\npods: {p: [a], q: [a]}", "in two pods, p and q"),
        ("leaves: {a: 'h[1-'}", "bracket"),
        ("leaves: {a: h1}\ngpus: {h1: 0}", "1 to 64"),
        ("leafs: {a: h1}", "leaves"),
    ],
)
def test_wrong_files(text: str, message: str) -> None:
    """What is wrong, in one sentence."""
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        read(text)


def test_order_of_names() -> None:
    """Numbers count as numbers, also of different width and in the middle."""
    names = ["n10", "n9", "n1.b", "r2n1", "r10n1", "n1.a", "n"]
    assert sorted(names, key=by_name) == ["n", "n1.a", "n1.b", "n9", "n10", "r2n1", "r10n1"]
    assert sorted(["7", "a", "7a", ""], key=by_name) == ["", "7", "7a", "a"]
