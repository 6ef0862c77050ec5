"""Names of switches by reverse look-up: which, asked for how often, and what becomes of paths known by address."""

import asyncio

import pytest
from tests.unit.diagnosis.test_random_faults import names, steady
from tests.unit.diagnosis.virtual_fleet import VirtualFleet

from fabricpulse.clocksync.coordinator.config import CoordinatorConfig
from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.diagnosis.daemon import switch_names
from fabricpulse.diagnosis.daemon.switch_names import SwitchNames, SwitchNaming

SPINE = r"(?:^|\.)(?P<switch>spine\d+)\."


@pytest.mark.parametrize(
    ("pattern", "name", "switch"),
    [
        ("", "spine1.dc.example.", "spine1.dc.example"),
        (SPINE, "et-0-0-1.spine07.dc.example", "spine07"),
        (SPINE, "spine7.dc.example", "spine7"),
        (SPINE, "leaf1.dc.example", ""),
        ("(?P<switch>x)?y", "y", ""),
        ("", "", ""),
        ("", 'a"b', ""),
        ("", "line\nbreak", ""),
        ("", "s" * 65, ""),
        ("", "spine/1", ""),
    ],
)
def test_the_switch_of_a_name(pattern: str, name: str, switch: str) -> None:
    """What the pattern finds; nothing that a label or a name of a NIC could be taken for."""
    assert SwitchNaming(True, pattern).switch_of(name) == switch


@pytest.mark.parametrize("pattern", ["(", "spine"])
def test_a_pattern_that_finds_no_switch_is_refused(pattern: str) -> None:
    """When the configuration is read."""
    with pytest.raises(ConfigError, match="pattern"):
        parse_config(f"switch_names: {{dns: true, pattern: '{pattern}'}}", CoordinatorConfig, "config")


class Worker:
    """What names it has got."""

    def __init__(self) -> None:
        self.busy = False
        self.got: list[dict[str, str]] = []

    def put(self, names: dict[str, str]) -> bool:
        if not self.busy:
            self.got.append(dict(names))
        return not self.busy


def naming(worker: Worker, pattern: str = "", dns: bool = True) -> SwitchNames:
    """One that is asked by hand."""
    return SwitchNames(SwitchNaming(dns, pattern), {"10.0.0.9"}, worker.put, lambda _: "")


def asked(found: SwitchNames) -> list[str]:
    """What it would look up now."""
    wanted = []
    while not found._wanted.empty():
        wanted.append(found._wanted.get())
    return wanted


def test_each_address_is_asked_for_once() -> None:
    """Not those that are declared; those without a name again after ten minutes; none without the setting."""
    found = naming(Worker())
    for _ in range(2):
        found.saw(("10.0.0.1", "", "10.0.0.9", "10.0.0.2"), 1.0)
    assert asked(found) == ["10.0.0.1", "10.0.0.2"]
    found.take("10.0.0.1", "spine1")
    found.take("10.0.0.2", "")
    found.saw(("10.0.0.1", "10.0.0.2"), 600.0)
    assert asked(found) == []
    found.saw(("10.0.0.1", "10.0.0.2"), 602.0)
    assert asked(found) == ["10.0.0.2"]
    off = naming(Worker(), dns=False)
    off.saw(("10.0.0.1",), 1.0)
    assert asked(off) == []


def test_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever hosts report."""
    monkeypatch.setattr(switch_names, "_MOST", 100)
    found = naming(Worker())
    found.saw((f"10.0.{n // 256}.{n % 256}" for n in range(1000)), 1.0)
    first = asked(found)
    assert len(first) == 100
    for address in first:
        found.take(address, "spine1")
    found.saw((f"10.1.0.{n}" for n in range(100)), 2.0)
    assert asked(found) == []


@pytest.mark.parametrize("address", ["1\0", "no address", "\udc80"])
def test_what_is_no_address_has_no_name(address: str) -> None:
    """It ends no thread that looks names up."""
    assert switch_names.reverse_lookup(address) == ""


def test_a_burst_is_handed_over_at_once() -> None:
    """When the last of it is answered, or after half a minute; again to a worker that is busy, or new."""
    worker = Worker()
    found = naming(worker)
    found.saw(("10.0.0.1", "10.0.0.2", "10.0.0.3"), 1.0)
    found.take("10.0.0.1", "spine1")
    found.deliver()
    assert worker.got == []
    found.take("10.0.0.2", "")
    found.take("10.0.0.3", "spine1")
    worker.busy = True
    found.deliver()
    worker.busy = False
    for _ in range(2):
        found.deliver()
    both = {"10.0.0.1": "spine1", "10.0.0.3": "spine1"}
    assert worker.got == [both]
    found.worker_is_new()
    found.deliver()
    assert worker.got == [both, both]
    # One that is never answered does not hold back the others for ever.
    found.saw(("10.0.0.4", "10.0.0.5"), 1.0)
    found.take("10.0.0.4", "spine2")
    for _ in range(30):
        found.deliver()
    assert worker.got[2:] == [{"10.0.0.4": "spine2"}]


async def test_look_ups_block_no_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in threads of their own."""
    monkeypatch.setattr(switch_names, "_PAUSE_S", 0.005)
    got = asyncio.Event()
    handed: list[dict[str, str]] = []

    def put(names: dict[str, str]) -> bool:
        handed.append(dict(names))
        got.set()
        return True

    found = SwitchNames(SwitchNaming(True, SPINE), (), put, lambda address: f"{address[-1]}.spine1.example")
    found.saw(("10.0.0.1", "10.0.0.2"), 1.0)
    task = asyncio.create_task(found.run())
    await asyncio.wait_for(got.wait(), 30)
    task.cancel()
    assert handed == [{"10.0.0.1": "spine1", "10.0.0.2": "spine1"}]


def test_paths_that_are_known_by_address_get_names() -> None:
    """Two addresses of one spine: with its name it is one switch, and at fault."""
    fleet = VirtualFleet(4, 12, 1, 4, 4)
    spine = "spine1-r0", "spine2-r0"
    fleet.faults = [steady("loss", 0.3, *(("switch", address) for address in spine))]
    fleet.play(12)
    fleet.evidence.name_switches(dict.fromkeys(spine, "core-1"))
    fleet.play(12)
    assert names(fleet.play(8)) == {("switch", "core-1", "")}
    # Paths that are reported later, too.
    for exporter in fleet.exporters.values():
        exporter.reported_paths = 0
    assert names(fleet.play(8)) == {("switch", "core-1", "")}
