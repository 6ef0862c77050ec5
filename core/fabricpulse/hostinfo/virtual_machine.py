"""Whether this host is a virtual machine, by the CPUID of its processor."""

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# The flags of the first processor are within.
_MOST_BYTES = 16_384


def is_virtual_machine(cpuinfo: Path = _CPUINFO) -> bool | None:
    """True where the processor says that it is a guest's (CPUID leaf 1, ECX bit 31: "hypervisor" among the flags).

    None where it cannot say: processors that are not x86. A hypervisor may hide itself.
    """
    try:
        with cpuinfo.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(b":")
        if name.strip() == b"flags":
            return b"hypervisor" in value.split()
    return None
