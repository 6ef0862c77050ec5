"""Outcomes that would lie: healthy hosts of other kinds are not accused, and what was not read does not pass."""

from pathlib import Path

import pytest
from tests.fixtures.audit.hosts import CASES, Case, N, P, U, route, routes
from tests.fixtures.hostinfo.host_tree import GpuHost

from fabricpulse.audit.checks.cpu_offline import cpus
from fabricpulse.audit.checks.pcie_acs import acs_control
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import failures
from fabricpulse.audit.registry import host_checks

RUN = {entry.check.id: entry.run for entry in host_checks()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_outcome(case: Case, tmp_path: Path) -> None:
    """Of the host that is played, and of no other subject is worse said than passed."""
    host = GpuHost(tmp_path, nics=2, infiniband=case.infiniband)
    case.play(host)
    reader = host.reader()
    said = {outcome.subject: outcome.status for outcome in RUN[case.check](reader)}
    assert {subject: said.get(subject) for subject in case.says} == case.says, said
    assert {s for subject, s in said.items() if subject not in case.says} <= {P, N}


def test_name_of_a_copied_tree_is_not_looked_up(tmp_path: Path) -> None:
    """A name server in a file is no answer of one."""
    reader = GpuHost(tmp_path).reader()
    reader.resolve = None
    assert [o.status for o in RUN["name-resolution"](reader)] == [U]


def test_front_end_of_another_board_is_no_back_end(tmp_path: Path) -> None:
    """Without a list of rails a slower NIC with the default route is not compared with those of jobs; one of the same
    board is."""
    host = GpuHost(tmp_path, nics=4)
    host.rails = {}
    routes(route("vlan0", "00000000", "00000000", "0100000A", "0003"))(host)
    host.sys.netdev("vlan0", 95, pci=None)
    host.sys.link(host.sys.net("vlan0") / "lower_eth3np0", host.sys.net("eth3np0"))
    assert [port.netdev for port in host.reader().ports] == [f"eth{n}np0" for n in range(4)]
    host.sys.write(host.sys.ib("mlx5_3") / "board_id", "MT_0000000425")
    reader = host.reader()
    assert [port.netdev for port in reader.ports] == [f"eth{n}np0" for n in range(3)]
    assert [netdev.name for netdev in reader.backend] == [f"eth{n}np0" for n in range(3)]


def test_a_bridge_that_does_not_answer_is_unknown() -> None:
    """All ones are no list of capabilities without ACS."""
    assert acs_control(b"\xff" * 4096) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [("", set()), ("0", {0}), ("0-2,5", {0, 1, 2, 5}), ("x", None), ("0-", None), ("1,", None), (None, None)],
)
def test_cpu_lists(text: str | None, found: set[int] | None) -> None:
    """As the kernel writes them."""
    assert cpus(text) == found


@pytest.mark.parametrize("check", ["kernel-log-host", "kernel-log-nic", "gpu-xid"])
def test_a_log_that_has_lost_its_beginning_is_reported(check: str, tmp_path: Path) -> None:
    """None since the start is claimed only of a log that goes back to it."""
    host = GpuHost(tmp_path, nics=1)
    [whole] = RUN[check](host.reader())
    reader = host.reader()
    (tmp_path / "kmsg").write_text("6,81920,99000,-;eth0: link up\n6,81921,99000,-;eth0: link down\n")
    [cut] = RUN[check](reader)
    assert (whole.status, whole.summary) == (P, "none")
    assert (cut.status, cut.summary) == (P, "none in what the kernel still has of its log")


def test_nics_for_storage_are_not_compared_with_those_of_jobs(tmp_path: Path) -> None:
    """Two of another board, slower, of another MTU and without PFC, are as they are meant; a NIC that differs from its
    own board is found."""
    host = GpuHost(tmp_path, nics=4)
    host.storage_nics()
    report = audit_host("h", host.reader(), patience_s=120, check_patience_s=60)
    assert failures(report) == []
    host.net("eth9np0", "mtu", 9000)
    host.net("eth2np0", "mtu", 4200)
    report = audit_host("h", host.reader(), patience_s=120, check_patience_s=60)
    assert {(f.check, f.subject) for f in failures(report)} == {
        ("nic-mtu-same", "eth2np0"),
        ("nic-mtu-same", "eth8np0"),
        ("nic-mtu-same", "eth9np0"),
    }


@pytest.mark.parametrize(
    ("changed", "speed", "checks"),
    [
        ({3}, 400_000, {("nic-mtu-same", 3), ("pfc-same", 3)}),
        # For storage: slower, or several.
        ({3}, 200_000, set()),
        ({2, 3}, 400_000, set()),
        # It is not known what a NIC is whose link is down.
        ({3}, -1, set()),
    ],
)
def test_a_nic_that_was_replaced_is_compared_with_its_like(
    changed: set[int], speed: int, checks: set[tuple[str, int]], tmp_path: Path
) -> None:
    """One of the same model and speed with another board ID is set as the others are, or a fault."""
    host = GpuHost(tmp_path, nics=4)
    for n in changed:
        host.sys.write(host.sys.ib(f"mlx5_{n}") / "board_id", "MT_0000000839")
        host.net(f"eth{n}np0", "speed", speed)
        host.net(f"eth{n}np0", "mtu", 1500)
        host.set_dcb(f"eth{n}np0", pfc_enabled=(False,) * 8)
    same = ("nic-mtu-same", "pfc-same", "nic-speed-same", "nic-firmware-same")
    reader = host.reader()
    found = {(name, int(o.subject[3])) for name in same for o in RUN[name](reader) if o.status not in (P, N)}
    assert found == checks
