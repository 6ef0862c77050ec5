"""Host lists: to whom an audit is restricted."""

import pytest

from fabricpulse.audit.fleet.host_list import chosen
from fabricpulse.core.errors import UserError


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
