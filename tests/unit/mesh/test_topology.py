"""How the learned tree is shown."""

import io

import pytest
from rich.console import Console

from fabricpulse.core.errors import UserError
from fabricpulse.mesh.topology import print_topology, rendered, require_leaves

DOCUMENT = {
    "hosts": 4,
    "edges": 6,
    "pairs": 6,
    "placed": 3,
    "sigma_ns": 100,
    "computed": "2026-01-01T00:00:00Z",
    "unseparated": 0,
    "missing": ["of 1 of 6 edges one end alone reports a delay; both are needed"],
    "nics": [
        {
            "nic": "a/e0",
            "rail": "r0",
            "pod": None,
            "leaf": "leaf-1",
            "machine": "machine(a/e0)",
            "confidence": 1.0,
        },
        {
            "nic": "b/e0",
            "rail": "r0",
            "pod": None,
            "leaf": "leaf-1",
            "machine": "machine(a/e0)",
            "confidence": 0.98,
        },
        {"nic": "c/e0", "rail": "r0", "pod": None, "leaf": "leaf-2", "machine": None, "confidence": 1.0},
        {"nic": "d/[red]\x1b", "rail": "r0", "pod": None, "leaf": None, "machine": None, "confidence": 0.0},
    ],
    "groups": [
        {"name": "leaf-1", "kind": "leaf", "above": None, "nics": ["a/e0", "b/e0"]},
        {"name": "machine(a/e0)", "kind": "machine", "above": "leaf-1", "nics": ["a/e0", "b/e0"]},
        {"name": "leaf-2", "kind": "leaf", "above": None, "nics": ["c/e0"]},
    ],
    "miscabled": [
        {
            "nic": "c/e0",
            "what": "wrong_rail",
            "leaf": "leaf-2",
            "leaf_rail": "r1",
            "expected": "leaf-1",
            "swapped_with": "c/e1",
        }
    ],
}


def test_tables():
    """Groups, hosts on one machine, NICs on a wrong rail with whom they are swapped, and what is missing."""
    out = io.StringIO()
    print_topology(DOCUMENT, Console(file=out, width=160))
    text = out.getvalue()
    for part in (
        "leaf-1",
        "98 %",
        "machine(a/e0)",
        "on r1, a wrong rail",
        "c/e1",
        "3 of 4 NICs are below one of 2 leaves",
    ):
        assert part in text
    assert "missing: of 1 of 6 edges" in text


def test_without_leaves_it_is_said_what_is_missing():
    """As an error, with each reason."""
    require_leaves(DOCUMENT)
    with pytest.raises(UserError, match="no leaf of the fabric is known yet: one; two"):
        require_leaves({**DOCUMENT, "placed": 0, "missing": ["one", "two"]})


def test_places_name_who_is_left_out():
    """Beside the file, for the reader; without any host that is known in full there is no file."""
    text, notes = rendered(DOCUMENT, "places")
    assert "leaf-1:\n  - a/e0\n  - b/e0\n" in text
    assert notes == ["1 hosts are left out, a leaf of theirs is not known: d"]
    with pytest.raises(UserError, match="would be empty"):
        rendered({**DOCUMENT, "nics": DOCUMENT["nics"][3:]}, "places")
