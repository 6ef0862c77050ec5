"""A service manager that does not let the sidecar ask the kernel for its clock's error."""

import platform
import subprocess
import sys

import pytest

# A seccomp filter: adjtimex (159) and clock_adjtime (305) fail with EPERM, all else is allowed.
CHILD = """
import ctypes, struct
from fabricpulse.clocksync.sidecar.config import AnchorConfig
from fabricpulse.clocksync.sidecar.system_anchor import anchor_bound
rules = [(0x20, 0, 0, 0), (0x15, 2, 0, 159), (0x15, 1, 0, 305), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0, ctypes.get_errno()
assert anchor_bound(AnchorConfig(kind="reference", uncertainty_ns=7)) == 7
try:
    print(anchor_bound(AnchorConfig(kind="system")))
except PermissionError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the filter has the numbers of x86-64's system calls"
)
def test_a_filter_of_system_calls_is_no_lack_of_synchronization() -> None:
    """Where adjtimex is forbidden the log says so, instead of naming chronyd."""
    out = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)
    assert (out.returncode, out.stdout) == (0, "Operation not permitted\n"), out.stderr
