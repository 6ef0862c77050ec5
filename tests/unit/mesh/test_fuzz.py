"""The packet parser and the train tables under libFuzzer (or a mutator of our own), with AddressSanitizer and
UndefinedBehaviorSanitizer; tests/fixtures/native/fuzzing.py says how to search for long."""

import pytest
from tests.fixtures.mesh.probe_fuzz import LONGEST, seeds
from tests.fixtures.native.fuzzing import SECONDS, run_target
from tests.fixtures.native.programs import native

RUNS = 6_000


@pytest.mark.build
@pytest.mark.timeout(900 + SECONDS)  # a sanitized build on a busy machine, and the search
def test_no_input_breaks_the_edge(tmp_path):
    """Strangers' bytes are never believed, broken members' packets never reach past a table, nothing counts twice."""
    assert (
        run_target(native("probe_fuzz", "fuzz"), seeds(), tmp_path, RUNS, longest=LONGEST) >= RUNS or SECONDS
    )
