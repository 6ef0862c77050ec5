"""The membership that the coordinator serves is one that a mesh takes, whatever single hosts say."""

from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from fabricpulse.clocksync.coordinator.coordinator import Coordinator
from fabricpulse.clocksync.coordinator.fleet_api import FleetApi
from fabricpulse.clocksync.coordinator.served_membership import served_membership
from fabricpulse.clocksync.wire.messages import PROTOCOL, HostInfo, NicInfo, RoundReport
from fabricpulse.core.config import parse_config
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.fleet.membership import Host, Membership, Nic
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.web.options import WebOptions

STATIC = """
hosts:
  - {name: old, nics: [{device: eth1, address: 10.0.0.1, network: a}, {device: eth2, address: 10.1.0.1, network: b}]}
  - {name: other, nics: [{device: eth1, address: 10.0.0.2, network: a}]}
"""


class Served:
    """A coordinator with a membership file, and what it serves."""

    def __init__(self, directory: Path) -> None:
        (directory / "fleet.yaml").write_text(STATIC)
        config = directory / "c.yaml"
        config.write_text(f"membership: {directory / 'fleet.yaml'}\n")
        self.coordinator = Coordinator(
            DaemonOptions(config, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime()
        )

    def join(self, host: str, nics: dict[str, str], at_s: float = 0.0) -> None:
        """By a report at `at_s`."""
        infos = tuple(NicInfo(device, address, "a") for device, address in nics.items())
        report = RoundReport(
            PROTOCOL, host, 1, 1, 0, b"", None, None, "", 0, HostInfo(1, "", infos, (), "none")
        )
        self.coordinator.fleet.report(report, at_s)

    async def hosts(self) -> dict[str, dict[str, str]]:
        """Addresses by host and device, as a mesh reads them. Raises ConfigError when it would refuse them."""
        response = await self.coordinator._api._membership(make_mocked_request("GET", "/api/v1/membership"))
        membership = parse_config(response.text or "", Membership, "m")
        return {host.name: {nic.device: nic.address for nic in host.nics} for host in membership.hosts}


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


async def test_a_host_that_was_renamed_is_there_by_its_new_name(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """The file still has the old one, with the same addresses; of that remains what nobody else claims."""
    served.join("new", {"eth1": "10.0.0.1"})
    for _ in range(2):
        assert await served.hosts() == {
            "new": {"eth1": "10.0.0.1"},
            "old": {"eth2": "10.1.0.1"},
            "other": {"eth1": "10.0.0.2"},
        }
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].__dict__["fields"]["what"] == (
        "eth1 of host 'old': 10.0.0.1 is that of host 'new'",
    )
    served.join("new", {"eth1": "10.0.0.1", "eth2": "10.1.0.1"})
    assert set(await served.hosts()) == {"new", "other"}


async def test_the_latest_name_counts_while_both_have_a_lease(served: Served) -> None:
    """And again the one before when the lease of the later is over."""
    served.join("z", {"eth1": "10.2.0.1"}, 0.0)
    served.join("a", {"eth1": "10.2.0.1"}, 1.0)
    served.join("z", {"eth1": "10.2.0.1"}, 9.0)
    assert "z" not in await served.hosts()
    assert (await served.hosts())["a"] == {"eth1": "10.2.0.1"}
    served.coordinator.fleet.solve_round(12.0)
    assert (await served.hosts())["z"] == {"eth1": "10.2.0.1"}


async def test_what_is_no_host_keeps_nobody_else_out(served: Served) -> None:
    """Names too long, addresses that are none, an address twice: from a sidecar that is not one of ours."""
    served.join("bad1", {"eth1": "no address"})
    served.join("bad2", {"e" * 40: "10.0.0.9"})
    served.join("bad3", {"eth1": "10.0.0.8", "eth2": "10.0.0.8"})
    served.join("good", {"eth1": "10.0.0.7"})
    assert set(await served.hosts()) == {"good", "old", "other"}


async def test_who_has_the_membership_is_not_sent_it_again(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mesh asks every two seconds: the document is made once for each change, and not sent without one."""
    made = []
    original = FleetApi.membership

    def counted(api: FleetApi) -> Membership:
        made.append(api)
        return original(api)

    monkeypatch.setattr(FleetApi, "membership", counted)

    async def get(server: Served, tag: str = "") -> tuple[int, str, int]:
        headers = {"If-None-Match": tag} if tag else {}
        request = make_mocked_request("GET", "/api/v1/membership", headers=headers)
        response = await server.coordinator._api._membership(request)
        return response.status, response.headers["ETag"], len(response.text or "")

    status, tag, size = await get(served)
    assert status == 200
    assert size > 100
    assert await get(served, tag) == (304, tag, 0)
    served.join("a", {"eth1": "10.2.0.1"}, 1.0)
    status, changed, _ = await get(served, tag)
    assert (status, changed != tag) == (200, True)
    served.join("a", {"eth1": "10.2.0.1"}, 2.0)
    for _ in range(10):
        assert (await get(served, changed))[0] == 304
    assert len(made) == 2
    (tmp_path / "fleet.yaml").write_text(STATIC.replace("10.0.0.2", "10.0.0.3"))
    await served.coordinator._reload()
    assert (await get(served, changed))[0] == 200
    (tmp_path / "other").mkdir()
    assert (await get(Served(tmp_path / "other"), tag))[0] == 304


def test_leaves_are_served_with_the_nics() -> None:
    """Of the topology, else of the file; hosts that have joined by lease say nothing of leaves, and have them too."""
    static = Membership(
        (Host("a", (Nic("e0", "10.0.0.1", "n", "old"), Nic("e1", "10.0.1.1", "n", "leaf2"))),)
    )
    joined = [Host("b", (Nic("e0", "10.0.0.2", "n"), Nic("e1", "10.0.1.2", "n")))]
    served, _ = served_membership(static, joined, {"a/e0": "leaf1", "b/e0": "leaf1"})
    leaves = {(host.name, nic.device): nic.leaf for host in served.hosts for nic in host.nics}
    assert leaves == {("a", "e0"): "leaf1", ("a", "e1"): "leaf2", ("b", "e0"): "leaf1", ("b", "e1"): ""}
