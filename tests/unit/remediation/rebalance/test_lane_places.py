"""Jobs that are congested at once: those below a common leaf may be so for one link, others hardly."""

from pathlib import Path

import yaml
from msgspec.structs import replace
from tests.unit.remediation.simulation.fabric_model import LINK, Fabric

from fabricpulse.remediation.protocol import LaneSample
from fabricpulse.remediation.receiver.config import RebalanceConfig
from fabricpulse.remediation.receiver.policy import load_policy
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneSummary
from fabricpulse.remediation.receiver.rebalance.lane_places import groups
from fabricpulse.remediation.receiver.rebalance.lane_planner import propose


def summaries(jobs: int) -> dict[str, LaneSummary]:
    """A lane of each job, all on one rail, all with more to send than they can."""
    fabric = Fabric(2, jobs, 1, 4)
    fabric._report()
    lanes = []
    for _, _, host, sample in fabric.mail:
        assert isinstance(sample, LaneSample)
        lanes.append(LaneSummary(host, replace(sample, nic_speed=8 * LINK), LINK, LINK, True, False))
    return {lane.key: lane for lane in lanes}


def scopes(lanes: dict[str, LaneSummary], leaves: dict[tuple[str, str], str]) -> list[tuple[str, ...]]:
    return sorted(p.scope for p in propose(RebalanceConfig(), lanes, {}, leaves=leaves))


def at(lanes: dict[str, LaneSummary], *names: str) -> dict[tuple[str, str], str]:
    """The lanes' NICs below these leaves, in order; "" where it is not known."""
    nics = [(lane.host, lane.last.device) for lane in sorted(lanes.values(), key=lambda lane: lane.host)]
    return {nic: leaf for nic, leaf in zip(nics, names, strict=True) if leaf}


def test_jobs_below_different_leaves_are_different_plans():
    """They were one plan, in which one job moved for the sake of three that it had nothing to do with."""
    lanes = summaries(4)
    everybody = ("job0", "job1", "job2", "job3")
    assert scopes(lanes, {}) == [everybody]
    assert scopes(lanes, at(lanes, "l1", "l1", "l2", "l2")) == [("job0", "job1"), ("job2", "job3")]
    assert scopes(lanes, at(lanes, "l1", "l1", "l2", "")) == [everybody], "one that may be anywhere"


def test_jobs_that_share_no_leaf_may_meet_above():
    """In a fabric of three tiers: those that are alone below their leaves stay one group."""
    lanes = summaries(4)
    assert scopes(lanes, at(lanes, "l1", "l1", "l2", "l3")) == [("job0", "job1"), ("job2", "job3")]
    assert scopes(lanes, at(lanes, "l1", "l2", "l3", "l4")) == [("job0", "job1", "job2", "job3")]
    assert scopes(summaries(2), at(summaries(2), "l1", "l2")) == [("job0", "job1")]


def test_leaves_are_joined_through_a_job_that_has_lanes_below_both():
    """Whatever the order in which the jobs come."""
    one, two, three, four = summaries(4).values()
    jobs = {"a": [one], "b": [two], "c": [three, four]}
    leaves = at(summaries(4), "l1", "l2", "l1", "l2")
    assert groups(jobs, leaves) == [jobs]
    assert groups({name: jobs[name] for name in "cba"}, leaves) == [jobs]


def test_leaves_come_from_membership(tmp_path: Path):
    """As far as it names them; a change of them is a change of the policy."""
    members, path = tmp_path / "m.yaml", tmp_path / "r.yaml"

    def write(leaf: str) -> None:
        nic = {"device": "eth1", "address": "10.0.0.1", "network": "a", "leaf": leaf}
        other = {"device": "eth2", "address": "10.1.0.1", "network": "b"}
        members.write_text(yaml.safe_dump({"hosts": [{"name": "h0", "nics": [nic, other]}]}))

    path.write_text(yaml.safe_dump({"membership": str(members), "journal": str(tmp_path / "x.db")}))
    write("l1")
    policy = load_policy(path)
    assert policy.leaves == {("h0", "eth1"): "l1"}
    write("l2")
    assert load_policy(path).digest != policy.digest
