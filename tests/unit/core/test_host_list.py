"""Host lists: the syntax of `scontrol show hostnames`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.host_list import expand, fold


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu-1", ["gpu-1"]),
        ("gpu-[1-3]", ["gpu-1", "gpu-2", "gpu-3"]),
        ("gpu-[008-011]", ["gpu-008", "gpu-009", "gpu-010", "gpu-011"]),
        ("gpu-[1,3,5-6],login1", ["gpu-1", "gpu-3", "gpu-5", "gpu-6", "login1"]),
        ("r[1-2]n[01-02].x", ["r1n01.x", "r1n02.x", "r2n01.x", "r2n02.x"]),
        ("a b\na", ["a", "b"]),
        ("", []),
        ("n[9-11]", ["n9", "n10", "n11"]),
    ],
)
def test_expand(text: str, hosts: list[str]) -> None:
    """Ranges keep their zeros, names keep their order, each host is there once."""
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "gpu-[1-",
        "gpu-]1[",
        "gpu-[[1]]",
        "gpu-[3-1]",
        "gpu-[a]",
        "gpu-[]",
        "-x",
        "a/b",
        "gpu-[1-999999999]",
        "x[1-1000]y[1-1000]",
    ],
)
def test_bad_lists_are_refused(text: str) -> None:
    """What is no list, or one of absurd length, is one sentence and neither a crash nor a full memory."""
    with pytest.raises(UserError):
        expand(text)


@given(
    st.lists(
        st.from_regex(r"[a-c]{1,2}(-?[0-9]{1,4})?(\.x[0-9]?)?", fullmatch=True), unique=True, max_size=12
    )
)
def test_fold_and_expand(hosts: list[str]) -> None:
    """What fold writes, expand reads: the same hosts in the same order."""
    assert expand(fold(hosts)) == hosts


def test_fold_makes_ranges() -> None:
    """Neighbours share a bracket; a range keeps zeros and ends where the width changes."""
    names = ["n8", "n9", "n10", "n11", "r1n001.x", "r1n002.x", "login"]
    assert fold(names) == "n[8-9,10-11],r1n[001-002].x,login"


@given(st.text("ab1[]-, ", max_size=24))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    """Nothing else comes of any text."""
    try:
        found = expand(text, 1000)
    except UserError:
        return
    assert len(set(found)) == len(found) <= 1000
