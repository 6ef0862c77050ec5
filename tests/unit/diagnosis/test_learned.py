"""What the coordinator reports of the tree: parts of leaves are called that, and a tree that may be wrong is not
reported.
"""

import subprocess
import sys
from dataclasses import replace

import numpy as np
from tests.fixtures.mesh.distant_nics import Fabric, Plan, Survey

from fabricpulse.diagnosis.tree.coverage import Coverage
from fabricpulse.diagnosis.tree.documents import places_file_of
from fabricpulse.diagnosis.tree.fabric_tree import tree_of
from fabricpulse.diagnosis.tree.learned import topology_document
from fabricpulse.diagnosis.tree.levels import Kind


def learned(survey: Survey):
    return topology_document(tree_of(survey.fabric.nics, survey.tree.delays), Coverage(hosts=9), 60.0)


def test_a_group_is_no_leaf_before_it_may_not_be_several():
    """With ten peers each, 64 hosts below four leaves are reported in groups of the right ones, of which too few
    pairs are known to call them leaves, and the answer says so; after more pairs have been measured they are leaves.
    """
    plan = Plan(hosts=64, per_leaf=16, leaves_per_pod=0)
    few, whole = (
        learned(Survey.of(Fabric(plan, 1), rounds=0)),
        learned(Survey.of(Fabric(plan, 1), rounds=30)),
    )
    assert {group["kind"] for group in few["groups"]} == {"group"}
    assert (few["placed"], few["unseparated"]) == (0, 0)
    assert "may be several leaves" in few["missing"][-1]
    assert {group["kind"] for group in whole["groups"]} == {"leaf"}
    assert (whole["placed"], len(whole["groups"]), whole["unseparated"], whole["missing"]) == (64, 4, 0, [])


def test_too_few_placed_are_not_reported():
    """In a fabric of pods where few peers of a NIC are near, some leaves would be wrong: none is reported, with the
    reason, and each NIC is there.
    """
    survey = Survey.of(Fabric(Plan(hosts=256, per_leaf=16, leaves_per_pod=4), 1), rounds=0)
    assert not survey.never_reported_wrongly(Kind.LEAF)
    document = learned(survey)
    assert (document["placed"], document["groups"], len(document["nics"])) == (0, [], 256)
    assert document["pairs"] == len(survey.tree.delays) > 0
    assert "too few to be believed" in document["missing"][-1]


def test_small_groups_of_virtual_machines():
    """Nine virtual machines that are near one another by threes are three groups, leaves or machines: with what to do,
    and no leaf is made up. Where each is known to have a machine of its own they are leaves.
    """
    fabric = Fabric(Plan(hosts=9, per_leaf=3, leaves_per_pod=0, congested=0.0), 1)
    a, b = np.triu_indices(9, 1)
    delays = fabric.measure(a, b, 15_000)
    either, leaves = (
        topology_document(
            tree_of([replace(nic, virtual=virtual) for nic in fabric.nics], delays), Coverage(hosts=9), 60.0
        )
        for virtual in (True, False)
    )
    assert [len(group["nics"]) for group in either["groups"]] == [3, 3, 3]
    assert (either["placed"], {group["kind"] for group in either["groups"]}) == (0, {"group"})
    assert "3 groups may be leaves or machines" in either["missing"][-1]
    assert "hosts_share_machines: false" in either["missing"][-1]
    assert (leaves["placed"], {group["kind"] for group in leaves["groups"]}) == (9, {"leaf"})
    assert leaves["missing"] == []


def entry(nic, leaf, pod=None):
    return {"nic": nic, "leaf": leaf, "pod": pod}


def test_places_leave_out_hosts_of_which_a_leaf_is_not_known():
    """The number of a rail is the place of its NIC among those listed: a host with a gap would be on wrong rails."""
    nics = [entry("a/e0", "x", "p"), entry("a/e1", "y", "p"), entry("b/e0", "x", "p"), entry("b/e1", None)]
    file, left_out = places_file_of({"nics": [*nics, entry("c/e0", "z")]})
    assert file == {"leaves": {"x": ["a/e0"], "y": ["a/e1"], "z": ["c/e0"]}, "pods": {"p": ["x", "y"]}}
    assert left_out == ["b"]


_SCRIPT = """
import gc, json, os, select, signal
from fabricpulse.diagnosis.daemon import survey
from fabricpulse.diagnosis.tree.learner import TreeLearner

class Learner(TreeLearner):
    def compute(self, now_s, last):
        if self.fault == "raises":
            raise RuntimeError("of a test")
        if self.fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute(now_s, last)

learner = Learner(10.0, {})
alive, abandoned = os.pipe(), []
made = survey.TreeSurvey(learner, lambda: (abandoned.append(1), os.write(alive[1], b".")))
now, reported = 0.0, []
made.advance(now)
for fault in ("raises", "dies", "", ""):
    learner.fault = fault
    now += 100
    made.advance(now)
    # A collection meanwhile would copy the pages of all objects.
    frozen = gc.get_freeze_count()
    while made.pipes:
        select.select(made.pipes, [], [])
        made.collect(now)
    assert frozen > 1000 > gc.get_freeze_count(), frozen
    reported.append(made.advance(now))
assert reported[:2] == [None, None], reported
assert [json.loads(one.document)["hosts"] for one in reported[2:]] == [0, 0], reported
# Each fork gives back what its parent alone uses; the parent goes on with it.
assert (os.read(alive[0], 99), abandoned) == (b"....", [])
print("done")
"""


def test_a_computation_that_fails_costs_nothing_else():
    """One that raises and one that is killed end without an answer, and the next one has its own."""
    command = [sys.executable, "-I", "-c", _SCRIPT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "done\n", ended.stderr
    assert "of a test" in ended.stderr
    assert "was not computed" in ended.stderr
