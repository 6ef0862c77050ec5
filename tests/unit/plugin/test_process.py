"""Names of the NCCL plugin's files, and whether their processes live."""

import os
import socket
from pathlib import Path

import pytest

from fabricpulse.plugin_ipc.process import PluginProcess, is_stale, own_namespace, parse_name

NOBODY = 999_999_999  # no process has it


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("4711", PluginProcess(4711, None)),
        ("1-effffffc", PluginProcess(1, 0xEFFFFFFC)),
        ("1-", None),
        ("-effffffc", None),
        ("0-effffffc", None),
        ("1-effffffc-2", None),
        ("1-nets", None),
        ("notes", None),
        ("", None),
        ("9" * 40, None),
    ],
)
def test_names(name: str, expected: PluginProcess | None) -> None:
    """Process id and namespace; anything else in the folder is nobody's."""
    assert parse_name(name) == expected


@pytest.mark.parametrize("suffix", ["", f"-{own_namespace():x}"], ids=["no namespace", "own namespace"])
def test_here_the_process_table_knows(tmp_path: Path, suffix: str) -> None:
    """A process that exists is there although nobody listens: it may only be starting."""
    for pid, gone in ((os.getpid(), False), (NOBODY, True), (4_000_000_000, True)):
        path = tmp_path / f"{pid}{suffix}.sock"
        path.touch()
        assert is_stale(path) is gone


def test_elsewhere_the_socket_knows(tmp_path: Path) -> None:
    """In another PID namespace the same number is another process: what counts is who listens."""
    path = tmp_path / f"{os.getpid()}-1234.sock"
    assert is_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        assert is_stale(path)
        server.listen(0)
        for _ in range(3):  # also one whose queue is full
            assert not is_stale(path)
    assert is_stale(path)
