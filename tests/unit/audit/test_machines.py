"""Fleets of several kinds of machines: what follows from hardware is compared among like machines."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.audit.compare.findings import fleet_findings
from fabricpulse.audit.compare.machines import MOST_FREQUENT, OTHER, PARTS, machines_of
from fabricpulse.audit.compare.odd_one_out import against, compare, usual_values
from fabricpulse.audit.host.attributes import ATTRIBUTES
from fabricpulse.audit.model import HostReport, Value

ROLE = "nvidia GPU host"
NEW = {
    "board": "Acme GX8",
    "cpu_model": "ACME 9654",
    "gpus": "8 x nvidia 0x2330",
    "rdma_devices": "8 x MT4129, 2 x MT4125",
    "cpus": "0-191",
    "memory_gib": "2048",
    "bios": "2.1",
    "kernel_parameters": "amd_iommu=on iommu=pt",
    "kernel": "6.8",
    "nccl": "2.27.3",
}
OLD = NEW | {
    "board": "Bolt B4",
    "cpu_model": "BOLT 8358",
    "gpus": "4 x nvidia 0x20b2",
    "rdma_devices": "4 x MT4123",
    "cpus": "0-63",
    "memory_gib": "1024",
    "bios": "1.4",
    "kernel_parameters": "intel_iommu=on iommu=pt",
}
# Of a NIC in a network that the membership lists, and of one that is known by its name alone.
RAIL, ALONE = f"{ROLE}: rail0", f"{ROLE}: eth0"


def host(values: dict[str, str], speed: str = "400000 Mb/s", mtu: str = "9000") -> tuple[Value, ...]:
    return (
        *(Value(name, ROLE, "", value) for name, value in values.items() if value),
        *(
            Value(name, role, "eth0", value)
            for role in (RAIL, ALONE)
            for name, value in (("mtu", mtu), ("speed", speed), ("buffers", f"of {speed}"))
        ),
    )


def fleet(new: int, old: int, **more: tuple[Value, ...]) -> dict[str, tuple[Value, ...]]:
    return (
        {f"n{n}": host(NEW) for n in range(new)}
        | {f"o{n}": host(OLD, "200000 Mb/s") for n in range(old)}
        | more
    )


def found(values: dict[str, tuple[Value, ...]]) -> tuple[set[tuple[str, str]], set[str]]:
    comparison = compare(values)
    return {(o.host, o.value.attribute) for o in comparison.odd}, {d.attribute for d in comparison.divided}


@pytest.mark.parametrize(("new", "old"), [(13, 3), (8, 8), (3, 40), (2, 0), (1, 0)])
def test_two_kinds_of_good_machines(new: int, old: int) -> None:
    """Neither is odd, and the fleet is not divided."""
    assert found(fleet(new, old)) == (set(), set())


@pytest.mark.parametrize(
    ("change", "odd"),
    [
        ({"memory_gib": "1984"}, {"memory_gib"}),
        ({"bios": "1.4"}, {"bios"}),
        ({"gpus": "7 x nvidia 0x2330"}, {"gpus"}),
        ({"gpus": "none"}, {"gpus"}),
        ({"rdma_devices": "8 x MT4129"}, {"rdma_devices"}),
        ({"rdma_devices": "none", "memory_gib": "1984"}, {"rdma_devices", "memory_gib"}),
        ({"cpu_model": "ACME 9754", "bios": "1.0"}, {"cpu_model", "bios"}),
        ({"nccl": "2.21"}, {"nccl"}),
        ({"board": ""}, set()),
    ],
)
@pytest.mark.parametrize(("new", "old"), [(9, 6), (6, 9), (12, 0)])
def test_an_odd_host_of_one_kind(change: dict[str, str], odd: set[str], new: int, old: int) -> None:
    """It is found as if the fleet had that kind alone."""
    assert found(fleet(new, old, bad=host(NEW | change))) == ({("bad", name) for name in odd}, set())


def test_a_single_other_machine() -> None:
    """It is odd in what it is, and of the rest of its hardware nothing is known; what is configured is compared."""
    other = host(OLD | {"nccl": "2.21"}, "200000 Mb/s", mtu="1500")
    odd, divided = found(fleet(12, 0, other=other))
    assert odd == {("other", name) for name in (*PARTS, "nccl", "mtu")}
    assert divided == set()
    assert sum(o.value.attribute == "mtu" for o in compare(fleet(12, 0, other=other)).odd) == 1


def test_few_hosts_of_a_large_fleet_are_odd() -> None:
    """Three of a hundred with another CPU are no kind of machine."""
    few = {f"few{n}": host(NEW | {"cpu_model": "ACME 9754"}) for n in range(3)}
    assert found(fleet(97, 0, **few)) == ({(name, "cpu_model") for name in few}, set())


def test_two_hosts() -> None:
    """Of two alike machines none is named, and what differs is said; two of different kinds are not compared."""
    both = {"a": host(NEW), "b": host(NEW | {"nccl": "2.21", "gpus": "7 x nvidia 0x2330"}, mtu="1500")}
    assert found(both) == (set(), {"nccl", "gpus", "mtu"})
    assert found({"a": host(NEW), "b": host(OLD)}) == (set(), set())
    plain = {
        name: tuple(msgspec.structs.replace(v, role=v.role.replace(ROLE, "host")) for v in own)
        for name, own in both.items()
    }
    assert found(plain) == (set(), set())


def test_a_profile_of_two_kinds_allows_both() -> None:
    """And nothing else."""
    values = fleet(4, 4)
    profile = usual_values(values)
    assert profile[ROLE]["board"] == ["Acme GX8", "Bolt B4"]
    assert profile[ROLE]["kernel"] == "6.8"
    assert against(values, profile) == []
    assert [value.attribute for _, value, _ in against({"x": host(NEW | {"bios": "9"})}, profile)] == ["bios"]


MODELS = st.sampled_from(["", "none", "8 x a", "7 x a", "8 x a, 1 x b", "4 x c"])


@given(st.lists(st.tuples(*(MODELS for _ in PARTS)), max_size=14), st.randoms())
def test_machines_do_not_depend_on_order_or_numbers(hosts: list[tuple[str, ...]], random: object) -> None:
    """Each host has one; like hosts have the same; how many devices a host has changes nothing."""
    named = {f"h{n}": host(dict(zip(PARTS, parts, strict=True))) for n, parts in enumerate(hosts)}
    machines = machines_of(named)
    shuffled = list(named.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert machines_of(dict(shuffled)) == machines
    fewer = {
        name: tuple(msgspec.structs.replace(v, value=re.sub("[0-9]+ x", "1 x", v.value)) for v in own)
        for name, own in named.items()
    }
    assert machines_of(fewer) == machines
    if machines:
        assert set(machines.values()) - {"", OTHER} == set() or MOST_FREQUENT in machines.values()


def test_parts_are_attributes_of_machines() -> None:
    """Or else a machine would be compared with others in what makes it one."""
    assert set(PARTS) <= {attribute.name for attribute in ATTRIBUTES if attribute.of_machine}


def test_a_divided_fleet_is_a_warning_that_names_who_has_what() -> None:
    """And no host is at fault."""
    old = {"nccl": "2.21"}
    values = {f"h{n}": host(NEW | (old if n < 2 else {})) for n in range(4)}
    reports = [HostReport(name, 1, 1, (), own) for name, own in values.items()]
    [finding] = fleet_findings(reports, {})
    assert (finding.check, finding.severity, finding.host, finding.subject) == (
        "fleet-divided",
        "warning",
        "",
        "nccl",
    )
    assert finding.summary == "nccl: 2 have 2.21; 2 have 2.27.3"
    assert (finding.evidence["2.21"], finding.evidence["2.27.3"]) == ("h0, h1", "h2, h3")
