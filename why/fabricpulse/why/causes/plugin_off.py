"""The job runs without the plugin on a host: NCCL uses its own transport there, and nothing of it is seen or survived.

Identified by a host whose processes are gone, or have no connections, while its NICs send as before. NCCL reports no
error when it cannot load a plugin: it takes another transport.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.finding import Evidence, Finding, finding

TITLE = "plugin off"
DO = (
    "Set what `fabricpulse plugin env` prints in the job's environment on this host, NCCL_NET_PLUGIN and NCCL_NET.",
    "NCCL_DEBUG=INFO logs which plugin it has loaded and why not this one.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a host."""
    carrying = {f.source.host for f in a.facts.flows if (f.sent or 0) > 0}
    if not carrying:
        return
    connected = {f.source.host for f in a.facts.flows if f.sent is not None}
    usual = sum(f.sent or 0 for f in a.facts.flows) / len(carrying)
    for host in a.facts.hosts:
        if host.name in carrying or "qp" not in host.exporters:
            continue
        # Connections of living processes that carry nothing are the plugin's as well: their peer may be gone. Exporters
        # keep what ended processes have counted.
        if host.processes and host.name in connected:
            continue
        sent = sum(n.transmitted or 0 for n in a.nics_of(host.name))
        if sent < 0.5 * usual:
            continue
        evidence = [
            Evidence(
                f"the NICs of {host.name} send {sent * 1e-9:.1f} GB/s and the plugin none of it",
                0.88,
                "transmitted",
            )
        ]
        if host.processes_before and not host.processes:
            evidence.append(
                Evidence("its processes had the plugin before and have it no more", 0.7, "processes")
            )
        elif host.processes:
            evidence.append(
                Evidence("its processes have the plugin loaded and no connections", 0.6, "processes")
            )
        yield finding("plugin_off", host.name, evidence, [("host", host.name)], "qp", "nic")
