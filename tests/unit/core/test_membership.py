"""The membership file: what it means and what it must not say."""

from pathlib import Path

import pytest

from fabricpulse.core.errors import ConfigError
from fabricpulse.core.fleet.membership import Nic, load_membership

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
        ("rail1", "rail0", "host 'h0' lists a device twice"),
        ("h1", "h0", "a host is listed twice"),
        ("'fd00::1'", "10.0.0.1", "two NICs have one address"),
        ("rail1", "r" * 32, "1 to 31 bytes"),
        ("network: b", "network: ''", "1 to 31 bytes"),
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
