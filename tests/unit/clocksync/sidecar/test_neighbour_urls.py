"""Where a sidecar tells its neighbours to find it."""

import pytest

from fabricpulse.clocksync.sidecar.neighbours import own_url


@pytest.mark.parametrize(
    ("addresses", "tls", "expected"),
    [
        ([("10.0.0.1", 9613)], False, "http://10.0.0.1:9613"),
        ([("gpu-001", 9613)], True, "https://gpu-001:9613"),
        ([("::", 9613), ("fd00::1", 9613)], True, "https://[fd00::1]:9613"),
        ([("", 9613), ("0.0.0.0", 9613), ("::", 9613)], False, ""),
    ],
)
def test_the_first_address_that_is_one(addresses: list[tuple[str, int]], tls: bool, expected: str) -> None:
    """Wildcards are none; https only where the server speaks it."""
    assert own_url(addresses, tls=tls) == expected
