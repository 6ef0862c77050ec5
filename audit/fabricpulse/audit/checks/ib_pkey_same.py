"""InfiniBand partitions."""

import re
from collections.abc import Iterator
from pathlib import Path

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.model import Outcome, failed, not_applicable, unknown

CHECK = Check(
    id="ib-pkey-same",
    category="back-end",
    severity="error",
    title="InfiniBand partitions",
    proves="All InfiniBand NICs of one model (board ID) are full members of the same partitions.",
    how="pkeys of the port; a key with the highest bit is full membership.",
    fix="Correct the partition of the port's GUID in the subnet manager.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    values: dict[str, str | None] = {}
    for port in host.ports:
        if port.link_layer == "InfiniBand":
            base = f"{port.device.path}/ports/{port.number}/pkeys"
            keys = {key for index in host.names(Path(base)) if (key := host.text(Path(f"{base}/{index}")))}
            full = sorted(key for key in keys if re.fullmatch(r"0x[89a-f][0-9a-f]{3}", key))
            if not keys:
                yield unknown("its partitions cannot be read", port.subject)
            elif not full:
                yield failed("full member of no partition", port.subject, keys=" ".join(sorted(keys)))
            else:
                values[port.subject] = " ".join(full)
    if values:
        yield from same_on_all(values, "partitions", "", host.boards)
    elif not any(port.link_layer == "InfiniBand" for port in host.ports):
        yield not_applicable("no InfiniBand port")
