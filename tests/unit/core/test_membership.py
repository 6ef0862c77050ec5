"""The membership file: what it means and what it must not say."""

from pathlib import Path

import pytest

from fabricpulse.core.errors import ConfigError
from fabricpulse.core.fleet.membership import Host, Membership, Nic, load_membership

GOOD = """
hosts:
  - name: h0
    nics:
      - {device: rail0, address: 10.0.0.1, network: a}
      - {device: rail1, address: 'fd00::1', network: b}
  - name: h1
"""


def test_good(tmp_path: Path) -> None:
    """Hosts are found by name; addresses of both families are fine."""
    path = tmp_path / "fleet.yml"
    path.write_text(GOOD)

    fleet = load_membership(path)

    host = fleet.host("h0")
    assert host is not None
    assert host.nics[1] == Nic(device="rail1", address="fd00::1", network="b")
    assert fleet.host("h2") is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("10.0.0.1", "10.0.0", r":5: hosts\[0\]\.nics\[0\]: '10.0.0' does not appear to be"),
        ("rail1", "rail0", r":3: hosts\[0\]: host 'h0' lists device 'rail0' twice"),
        ("h1", "h0", r":7: hosts\[1\]: host 'h0' is listed twice"),
        ("'fd00::1'", "10.0.0.1", r":6: .*address 10.0.0.1 belongs to two NICs, h0 rail0 and h0 rail1"),
        ("rail1", "r" * 32, "1 to 31 bytes"),
        ("network: b", "network: ''", "1 to 31 bytes"),
        ("h1", "H0.example.com", r":7: hosts\[1\]: host 'H0.example.com' is the same as 'h0'"),
        ("h1", "h" * 96, "1 to 95 bytes"),
        ("address", "adress", "did you mean 'address'"),
    ],
)
def test_refusals(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Each mistake is refused with its place."""
    path = tmp_path / "fleet.yml"
    path.write_text(GOOD.replace(old, new, 1))

    with pytest.raises(ConfigError, match=words):
        load_membership(path)


def test_an_empty_fleet_is_refused(tmp_path: Path) -> None:
    """`hosts: []` would take every NIC's peers away: it is a mistake, never a fleet."""
    path = tmp_path / "fleet.yml"
    path.write_text("hosts: []\n")

    with pytest.raises(ConfigError, match=r"fleet.yml:1: hosts: there is no host in it"):
        load_membership(path)


def fleet_of(*names: str) -> Membership:
    return Membership(hosts=tuple(Host(name=name) for name in names))


@pytest.mark.parametrize(
    ("names", "asked", "found"),
    [
        (("gpu-001",), "gpu-001.example.com", "gpu-001"),
        (("gpu-001.example.com",), "gpu-001", "gpu-001.example.com"),
        (("gpu-001.example.com",), "GPU-001.Example.com", "gpu-001.example.com"),
        (("gpu-001.a.com", "gpu-001.b.com"), "gpu-001.b.com", "gpu-001.b.com"),
        (("gpu-001.a.com", "gpu-001.b.com"), "gpu-001", None),
        (("gpu-001.a.com",), "gpu-001.b.com", None),
        (("gpu-001",), "gpu-0011", None),
    ],
)
def test_short_and_qualified_names_are_one_host(
    names: tuple[str, ...], asked: str, found: str | None
) -> None:
    """The system calls itself by its FQDN and the fleet by the short name, or the other way round."""
    host = fleet_of(*names).host(asked)
    assert (host.name if host else None) == found
