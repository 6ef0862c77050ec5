"""What the jobs of a host say of themselves: NICs, traffic, workloads. Pure."""

import pytest

from fabricpulse.remediation.node.survey import Survey, traffic_outcome


def status(moved: int, waiting: int = 0, avoided: bool = True) -> dict[str, object]:
    return {
        "devices": [
            {
                "device": "rail0",
                "link": "up",
                "avoided": avoided,
                "sent_bytes": 7 * moved,
                "received_bytes": 0,
            },
            {"device": "rail1", "link": "up", "avoided": False, "sent_bytes": 0, "received_bytes": moved},
        ],
        "waiting": waiting,
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (status(1), status(2, 3), "moved"),
        (status(1), status(1), "idle"),
        (status(1), status(1, 1), "stalled"),
    ],
)
def test_traffic_outcome(before, after, expected):
    """Bytes on other NICs count; where none moved, requests that our lanes hold up make it a stall."""
    assert traffic_outcome(Survey({"1": before}), Survey({"1": after}), "rail0") == expected


def test_one_job_that_moves_does_not_hide_another_that_stalled():
    """A byte of any process counted for all of them."""
    before = Survey({"1": status(1), "2": status(5)})
    assert traffic_outcome(before, Survey({"1": status(2), "2": status(5, 1)}), "rail0") == "stalled"
    assert traffic_outcome(before, Survey({"1": status(2), "2": status(5)}), "rail0") == "moved"
    assert traffic_outcome(before, Survey({"1": status(2), "2": status(6, 1)}), "rail0") == "moved"


def test_one_user_that_stalls_beside_another_is_not_the_host():
    """Every user can make sockets that say that they stall; the NIC goes back, and the rule is not judged by it."""
    before = Survey({"1": status(1), "2": status(5)})
    after = {"1": status(2), "2": status(5, 1)}
    found = [
        traffic_outcome(before, Survey(after, owners={"1": 1000, "2": uid}), "rail0") for uid in (1000, 1001)
    ]
    assert found == ["stalled", "partly_stalled"]
    idle = Survey({"1": status(1), "2": status(5, 1)}, owners={"1": 1000, "2": 1001})
    assert traffic_outcome(before, idle, "rail0") == "partly_stalled"


def test_jobs_of_a_host():
    """Those with a name, each once, cut and bounded."""
    named = {str(n): {**status(1), "workload": "w" * 500 + str(n)} for n in range(3)}
    nameless = {"a": {**status(1), "workload": "unknown"}, "b": status(1), "c": {"workload": 7}}
    assert Survey(named | nameless).workloads() == ["7", "w" * 128]
    assert len(Survey({str(n): {"workload": f"w{n}"} for n in range(99)}).workloads()) == 64


def uses(*devices: str, out: str = "") -> dict[str, object]:
    return {"devices": [{"device": d, "link": "up", "avoided": d == out} for d in devices]}


def test_no_process_loses_its_last_nic_or_too_many():
    """Each is asked about its own NICs: forty that another process makes up help nobody."""
    many = uses(*(f"fake{i}" for i in range(40)), "rail0")
    four = ("rail0", "rail1", "rail2", "rail3")
    assert Survey({"1": status(1), "2": uses("rail0")}).refusal("rail0", 0.5) == (
        "pid 2 would have no usable NIC left"
    )
    assert Survey({"1": status(1)}).refusal("rail0", 0.5) == ""
    assert Survey({"1": uses(*four), "2": many}).refusal("rail0", 0.75) == ""
    assert Survey({"1": uses(*four, out="rail3"), "2": many}).refusal("rail0", 0.75) == (
        "pid 1 would have 2 of its 4 NICs out of service"
    )


def test_who_has_processes():
    """Those that answer; of more users than fit none is named, as some alone would mislead."""
    owners = {str(n): n // 2 for n in range(200)}
    assert Survey({"7": {}, "9": {}, "8": {}}, owners=owners).users() == [3, 4]
    assert Survey({name: {} for name in owners}, owners=owners).users() == []
