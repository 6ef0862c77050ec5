"""Every fault between hosts that is played is found, named, and alone."""

import random

import pytest
from tests.fixtures.audit.path_faults import PATH_FAULTS, PathFault, PlayedFleet


def test_a_good_fleet_has_no_finding() -> None:
    """Whatever its noise."""
    assert PlayedFleet(5, 2, random.Random(1)).findings() == []


@pytest.mark.parametrize("fault", PATH_FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_nothing_else(fault: PathFault) -> None:
    """By the tests that a run makes of its plan, and again where something failed."""
    fleet = PlayedFleet(5, 2, random.Random(fault.name))
    expected = fault.play(fleet)
    assert {(f.check, f.host, f.subject) for f in fleet.findings()} == expected
