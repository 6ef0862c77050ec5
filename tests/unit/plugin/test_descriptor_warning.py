"""When a process warns of too few file descriptors (tests/native/plugin/descriptor_warning.cc)."""

import re
import subprocess

from tests.fixtures.native.programs import native


def warnings(*steps: str) -> list[tuple[int, str, str]]:
    """Time in ms, connections without a lane of all, and lanes that are missing, of each warning."""
    done = subprocess.run(
        [native("plugin_descriptor_warning")],
        input="\n".join(steps),
        capture_output=True,
        check=True,
        text=True,
    )
    found = [
        re.fullmatch(
            r"(\d+) of its \d+ file .*: (\d+ of \d+) connections .* take (\d+) descriptors more.*", line
        )
        for line in done.stdout.splitlines()
    ]
    return [(int(match[1]), match[2], match[3]) for match in found if match]


def test_lanes_that_want_no_descriptor_are_not_missing() -> None:
    """A spare lane is down by design, and one over a NIC without a link waits for that."""
    assert warnings("lane 0", "refused 1001") == [(1001, "0 of 1", "1")]
    assert warnings("lane 0", "wait 200", "lane 1", "refused 5000") == []
    assert warnings("lane 0", "down 1", "refused 5000") == []


def test_connections_that_have_a_lane_at_last_are_logged_at_once() -> None:
    """A minute later would leave the log with connections that carry nothing; else it is logged once a minute."""
    assert warnings("refused 5000", "lane 0", "refused 70000") == [
        (1001, "1 of 1", "2"),
        (5005, "0 of 1", "1"),
        (65005, "0 of 1", "1"),
    ]


def test_what_was_short_long_ago_is_not_logged() -> None:
    """Within the minute after a warning descriptors were short once more: after it lanes that were down for another
    reason were put down to that."""
    assert warnings("lane 0", "refused 2000", "wait 100000") == [(1001, "0 of 1", "1")]
