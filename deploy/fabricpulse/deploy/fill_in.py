"""Fills in the placeholders of files: names of machines, the path of the command, the hosts of the fleet."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_HOST_TARGETS = re.compile(r'"gpu-001:(\d+)", "gpu-002:\1"')


@dataclass(frozen=True)
class Values:
    """Values of the site. None: left as it is in the file.

    command : path of `fabricpulse`. monitor : name or address of the machine of coordinator, receiver, Prometheus and
    Alertmanager, as hosts reach it. cluster : the label of the scrape jobs. hosts : names of the fleet's hosts.
    """

    command: Path | None = None
    monitor: str | None = None
    cluster: str | None = None
    hosts: Sequence[str] | None = None


def filled_in(text: str, values: Values) -> str:
    """`text` of one of our files with the values in it; what it does not mention is not added."""
    if values.command is not None:
        text = text.replace("/usr/bin/fabricpulse ", f"{values.command} ")
    if values.monitor is not None:
        # A numeric IPv6 address stands in brackets before its port.
        monitor = f"[{values.monitor}]" if ":" in values.monitor else values.monitor
        text = re.sub(r'(//|")monitor:(?=\d)', lambda match: f"{match[1]}{monitor}:", text)
    if values.cluster is not None:
        quoted = json.dumps(values.cluster)
        text = re.sub(r"((?:replacement|cluster): )gpu-a\b", lambda match: f"{match[1]}{quoted}", text)
    if values.hosts is not None:
        hosts = values.hosts
        text = _HOST_TARGETS.sub(
            lambda match: ", ".join(json.dumps(f"{host}:{match[1]}") for host in hosts), text
        )
    return text
