"""What the command knew in live runs of the lab, and what was broken: fixes of the model were made for these."""

import pytest
from tests.bench.why.recorded import Record, read
from tests.fixtures.why.truth import top1

from fabricpulse.why.infer import infer

RECORDS = read()


@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_the_first_cause_is_right(number: int) -> None:
    record: Record = RECORDS[number]
    causes = infer(record.facts).causes
    reported = [(c.finding.cause, c.finding.where, round(c.finding.confidence, 2)) for c in causes]
    assert top1(record.truth, reported), (record.play, record.truth, reported)
