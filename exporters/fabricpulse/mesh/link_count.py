"""How often a NIC has lost its carrier, by the kernel's count."""

from pathlib import Path


def carrier_losses(device: str, root: Path = Path("/sys/class/net")) -> int:
    """carrier_down_count of a netdev, which counts an outage between two reads too. -1 where there is none."""
    try:
        return int((root / device / "carrier_down_count").read_text())
    except (OSError, ValueError):
        return -1
