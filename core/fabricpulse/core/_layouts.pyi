def layouts() -> dict[str, dict[str, int]]:
    """Layout name -> field -> byte offset in the C++ structs, and `sizeof`."""

def virtual_clock_apply(page: bytes, kernel_ns: int) -> int:
    """Host clock in ns by the bytes of a virtual clock page (fp_virtual_clock_apply)."""

def clock_convert(page: bytes, host_ns: int) -> tuple[int, int, int]:
    """(fleet_ns, bound_ns, status) by the bytes of a clock page (fp_clock_convert). Raises ValueError."""

def clock_at(page: bytes, raw_ns: int) -> tuple[int, int, int]:
    """(fleet_ns, bound_ns, status) by the bytes of a clock page (fp_clock_at). Raises ValueError."""
