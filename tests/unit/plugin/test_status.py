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


@pytest.mark.build
def test_an_answer_is_given_again_until_something_happens() -> None:
    """The same question within 50 ms gets the same answer, which says how old it is; after another question, an event,
    a request that changes something or a connection that has come it gets a new one."""
    done = subprocess.run(
        [native("plugin_status"), "3", "2", "kept"], capture_output=True, text=True, check=True
    )
    at_once, later, other_asked, kept, event, kept_again, changed, born, old = map(int, done.stdout.split())
    assert (at_once, later, other_asked, kept, event, kept_again) == (0, 30, 0, 49, 0, 10)
    assert (changed, born, old) == (0, 0, 0)
