"""A service manager that does not let the sidecar ask the kernel for its clock's error."""

import platform
import subprocess
import sys

import pytest

from fabricpulse.clocksync.sidecar.system_anchor import FastSlew

# A seccomp filter: adjtimex (159) and clock_adjtime (305) fail with EPERM, all else is allowed.
CHILD = """
import ctypes, struct
from fabricpulse.clocksync.sidecar.config import AnchorConfig
from fabricpulse.clocksync.sidecar.system_anchor import FastSlew, anchor_bound
rules = [(0x20, 0, 0, 0), (0x15, 2, 0, 159), (0x15, 1, 0, 305), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0, ctypes.get_errno()
assert anchor_bound(AnchorConfig(kind="reference", uncertainty_ns=7), FastSlew(), 0) == 7
try:
    print(anchor_bound(AnchorConfig(kind="system"), FastSlew(), 0))
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


def test_a_slew_whose_daemon_has_died_is_in_the_bound() -> None:
    """At 2,000 ppm, amid which chronyd is killed: the kernel goes on, and claims 500 ppm. A daemon that lives says how
    far it still has to go: nothing is added. At 400 ppm the claim holds, whatever the oscillator needs.
    """
    for rate_ppb, killed_s in ((-2_000_000, 20), (2_000_000, 5), (400_000, 0)):
        slew, updated_s = FastSlew(), 0
        for t_s in range(60):
            off_ns = abs(20_000_000 - 2_000_000 * t_s) if abs(rate_ppb) > 500_000 else 400_000 * t_s
            if t_s <= killed_s and t_s % 4 == 0:
                updated_s, claimed_ns = t_s, off_ns + 1_000_000
            maxerror_ns = claimed_ns + 500_000 * (t_s - updated_s)
            bound_ns = maxerror_ns + slew.take(maxerror_ns, rate_ppb, t_s * 10**9)
            assert off_ns <= bound_ns, (rate_ppb, t_s)
            if abs(rate_ppb) < 500_000:
                assert bound_ns == maxerror_ns
