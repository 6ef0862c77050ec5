"""The job runs without the plugin on a host: NCCL uses its own transport there, and nothing of it is seen or survived.

Identified by a host whose processes are gone, or have no connections, while its NICs send as before. NCCL reports no
error when it cannot load a plugin: it takes another transport. A host at which flows of the plugin arrive, or of whose
flows the bytes are not known, has the plugin: series are missing, and it is a hint.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.facts import Host
from fabricpulse.why.finding import Evidence, Finding, as_undecided, finding

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
    gaps = {f.source.host for f in a.facts.flows if f.sent is None}
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
        if host.processes_before and host.processes == 0:
            evidence.append(
                Evidence("its processes had the plugin before and have it no more", 0.7, "processes")
            )
        elif host.processes:
            evidence.append(
                Evidence("its processes have the plugin loaded and no connections", 0.6, "processes")
            )
        found = finding("plugin_off", host.name, evidence, [("host", host.name)], "qp", "nic")
        missing = _missing(a, host, host.name in gaps)
        yield as_undecided(found, missing) if missing else found


def _missing(a: Analysis, host: Host, gap: bool) -> str:
    """Which series of a host with the plugin are missing; empty where none is known to be."""
    sent = "fabricpulse_qp_sent_bytes_total"
    if gap:
        return f"what flows of {host.name} send ({sent}) is not known"
    if host.processes == 0:
        return ""
    if host.processes is None:
        return f"whether {host.name} has processes (fabricpulse_qp_processes) is not known"
    # The other end of a connection of the plugin is the plugin, and delays are measured where chunks arrive.
    into = [f for f in a.facts.flows if f.target.host == host.name]
    if any(f.delay_s is not None or f.floor_s is not None for f in into):
        return f"chunks of the plugin arrive at {host.name}: series of what it sends ({sent}) are missing"
    # What a host without a qp exporter sends to it is not known.
    if (into or "qp" in a.missing()) and any(r.host == host.name for r in a.facts.ranks):
        return f"ranks of {host.name} are known: series of what it sends ({sent}) may be missing"
    return ""
