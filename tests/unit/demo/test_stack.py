"""Which daemons the demo starts."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fabricpulse.core.config import parse_config
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.lab.demo.stack import Stack, StackOptions
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.receiver.config import ReceiverConfig

# The daemon of the audit waits for somebody who asks for one, and no scenario does.
NOT_STARTED = {"audit-node"}


class PaperStack(Stack):
    """Starts nothing: what would be started, by node."""

    started: list[tuple[str, Sequence[str | Path]]]

    def _add(self, node: str, name: str, argv: Sequence[str | Path]) -> None:
        self.__dict__.setdefault("started", []).append((node, argv))
        self._daemons[name, node] = cast(Any, SimpleNamespace(name=name, show=lambda port: None))

    def _prometheus(self, node: str) -> None:
        self._add(node, "prometheus", [])

    def _alertmanager(self, node: str) -> None:
        self._add(node, "alertmanager", [])


def paper(tmp_path: Path, *, repaths: bool = False) -> PaperStack:
    lab = SimpleNamespace(
        directory=tmp_path,
        mgmt=SimpleNamespace(name="mgmt"),
        fabric=SimpleNamespace(host_names=["h0"], front_end_addresses={"mgmt": "10.9.0.1"}),
        write_membership=lambda leaves: tmp_path / "fleet.yaml",
        address=lambda host, device: "10.9.0.2",
        host=lambda name: SimpleNamespace(directory=tmp_path),
    )
    return PaperStack(cast(Any, lab), StackOptions(cast(Any, None), repaths=repaths))


def test_the_demo_starts_every_daemon(tmp_path: Path) -> None:
    """As its help says: all but the audit's."""
    stack = paper(tmp_path)

    commands = [[str(word) for word in argv] for _, argv in stack.started if argv]
    names = {
        "-".join(words[words.index("fabricpulse.core.cli") + 1 : words.index("--config")])
        for words in commands
    }
    assert names == set(DAEMONS) - NOT_STARTED


@pytest.mark.parametrize("repaths", [False, True])
def test_lanes_get_other_paths_on_the_alert_alone(repaths: bool, tmp_path: Path) -> None:
    """Only in scenarios that ask for it; a window has reports in its first and in its last third."""
    paper(tmp_path, repaths=repaths)
    text = (tmp_path / "demo" / "mgmt-remediation-receiver.yaml").read_text()
    receiver = parse_config(text, ReceiverConfig, "receiver")
    assert [
        rule.alert for rule in receiver.rules if rule.action == "lane.repath" and rule.mode == "auto"
    ] == (["FabricPathContended"] if repaths else [])
    assert receiver.rebalance.mode == "observe"
    node = parse_config((tmp_path / "demo" / "h0-remediation-node.yaml").read_text(), NodeConfig, "node")
    assert not repaths or 2 * node.report_interval_s <= receiver.rebalance.window_s / 3
