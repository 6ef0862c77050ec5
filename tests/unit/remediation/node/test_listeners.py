"""Whose sockets may answer at an address of this host."""

import os
import socket
import sys
from pathlib import Path

import pytest

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.listeners import listeners

_HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
_ANY6 = "0" * 32


def _row(address: str, port: int, state: str, uid: int) -> str:
    return f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid:5} 0 1 1"


def _table(folder: Path, name: str, *rows: str) -> None:
    (folder / name).write_text("\n".join([_HEADER, *rows]) + "\n")


@pytest.mark.skipif(
    sys.byteorder != "little", reason="the addresses of the tables are in the machine's order"
)
def test_who_may_answer(tmp_path: Path) -> None:
    """Listeners of the port at the address or at any; connections, other ports and other addresses say nothing."""
    rows = [
        _row("0100007F", 9610, "0A", 1),
        _row("00000000", 9610, "0A", 2),
        _row("0100007F", 9610, "01", 3),  # established
        _row("0100007F", 9611, "0A", 4),
        _row("0200007F", 9610, "0A", 5),  # 127.0.0.2
    ]
    six = [
        _row(_ANY6, 9610, "0A", 6),
        _row("00000000000000000000000001000000", 9610, "0A", 7),  # ::1
        _row("0000000000000000FFFF00000100007F", 9610, "0A", 8),  # ::ffff:127.0.0.1
        _row("000080FE000000000000000001000000", 9610, "0A", 9),  # fe80::1
    ]
    _table(tmp_path, "tcp", *rows)
    assert listeners("http://localhost:9610/metrics", tmp_path) == {1, 2}  # no IPv6
    _table(tmp_path, "tcp6", *six)
    assert listeners("http://127.0.0.1:9610/metrics", tmp_path) == {1, 2, 6, 8}
    assert listeners("http://[::1]:9610/metrics", tmp_path) == {6, 7}
    assert listeners("http://localhost:9610/metrics", tmp_path) == {1, 2, 6, 7, 8}
    assert listeners("http://localhost/metrics", tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("family", "bound", "host"),
    [(socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::", "localhost")],
)
def test_the_kernel_s_own_tables(family: socket.AddressFamily, bound: str, host: str) -> None:
    with socket.socket(family) as server:
        server.bind((bound, 0))
        url = f"http://{host}:{server.getsockname()[1]}/metrics"
        assert listeners(url) == frozenset()
        server.listen()
        assert listeners(url) == {os.getuid()}


def test_only_local_servers_have_known_users() -> None:
    """A setting that could not hold is refused."""
    with pytest.raises(ConfigError, match="mesh_users"):
        parse_config("{mesh_url: 'http://monitor:9610/metrics', mesh_users: [root]}", NodeConfig, "t")
    parse_config("{mesh_url: 'http://[::1]:9610/metrics', mesh_users: [root]}", NodeConfig, "t")
