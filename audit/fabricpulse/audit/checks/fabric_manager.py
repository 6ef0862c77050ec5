"""NVIDIA's fabric manager."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="fabric-manager",
    category="node",
    severity="error",
    title="NVIDIA's fabric manager",
    proves=("NVIDIA's fabric manager where there are NVSwitches."),
    how="Names of running processes, and NVSwitches (PCI class 0x0680 of NVIDIA).",
    fix="`systemctl enable --now nvidia-fabricmanager`: without it CUDA fails on such hosts.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    base = "/sys/bus/pci/devices"
    switches = [
        address
        for address in host.names(base)
        if host.text(f"{base}/{address}/vendor") == "0x10de"
        and (host.text(f"{base}/{address}/class") or "").startswith("0x0680")
    ]
    if not switches:
        yield not_applicable("no NVSwitch")
    elif any(name.startswith("nv-fabricmanage") for _, name in host.processes):
        yield passed("nv-fabricmanager runs")
    elif not host.sees_all_processes:
        yield unknown("the processes of the host are not visible here")
    else:
        yield failed("nv-fabricmanager does not run", switches=len(switches))
