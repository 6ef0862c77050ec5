"""`status` of a job with many connections (nccl_plugin/src/control/status.cc)."""

import json
import subprocess

import pytest
from tests.fixtures.native.programs import native


@pytest.mark.build
def test_a_page_costs_what_is_on_it() -> None:
    """All pages of 500 connections: each connection once, the same sums on each, and little beside what is listed."""
    # Processor time of one thread, the least of five runs each. With sums anew for each page it is 2.4 times.
    done = subprocess.run([native("plugin_status"), "500", "8"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["pages"] > 10
    assert found["listed"] == 500
    assert (found["sums"], found["kinds_of_sums"]) == ("4000/4000/500", 1)
    assert found["whole_us"] < 1.7 * found["alone_us"]
