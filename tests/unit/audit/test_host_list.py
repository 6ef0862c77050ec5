"""Host lists: the syntax of `scontrol show hostnames`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.audit.host_list import chosen, expand
from fabricpulse.core.errors import UserError


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


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (None, []),
        ("node/gpu-1\nnode/gpu-2\n", ["gpu-1", "gpu-2"]),
        ("gpu-1\r\n\n  node/gpu-2", ["gpu-1", "gpu-2"]),
        ("gpu[001-003],login1", ["gpu001", "gpu002", "gpu003", "login1"]),
        ("node-7", ["node-7"]),
    ],
)
def test_chosen(text: str | None, hosts: list[str]) -> None:
    """No list restricts nothing; Kubernetes' and Slurm's are read alike."""
    assert chosen(text) == hosts


@pytest.mark.parametrize("text", ["", " \n", "pod/gpu-1", "node/node/gpu-1"])
def test_a_list_that_names_nobody_is_not_the_fleet(text: str) -> None:
    """An unset variable, a label that no node has, another kind of object."""
    with pytest.raises(UserError):
        chosen(text)


@given(st.text("ab1[]-, ", max_size=24))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    """Nothing else comes of any text."""
    try:
        found = expand(text, 1000)
    except UserError:
        return
    assert len(set(found)) == len(found) <= 1000
