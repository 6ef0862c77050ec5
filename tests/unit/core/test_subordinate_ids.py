"""Whose ids of /etc/subuid are: a user's containers are his."""

import os

import pytest

from fabricpulse.core import subordinate_ids
from fabricpulse.core.subordinate_ids import IdRange, SubordinateIds, parse_subuid
from fabricpulse.remediation.node.survey import Survey


def test_lines_that_make_no_sense_are_passed_over():
    """As subuid(5) has them: owner, first, count."""
    lines = [
        "1000:100000:65536",
        "",
        "# x:1",
        "a:b:c",
        "x:-5:9",
        ":1:2",
        "y:7:0",
        "z:²:9",
        "z:1:99999999999",
        "u:9:1:",
    ]
    assert parse_subuid("\n".join([*lines, " root:165536:2 "])) == [
        IdRange("1000", 100000, 65536),
        IdRange("root", 165536, 2),
    ]


def test_uids_of_a_users_containers_are_his(tmp_path):
    """Uid 100001 on one host and 100002 on another were two users, who agreed that the rule does harm."""
    path = tmp_path / "subuid"
    path.write_text("1000:100000:65536\nroot:165536:10\nno-such-user-here:300000:10\n")
    ids = SubordinateIds(path)
    uids = {"1": 100000, "2": 165535, "3": 165536, "4": 165546, "5": 1000, "6": 300001}
    owners = ids.owners(uids)
    assert owners == {"1": 1000, "2": 1000, "3": 0, "4": 165546, "5": 1000}
    assert Survey({"1": {}, "2": {}, "5": {}}, owners=owners).users() == [1000]
    assert Survey({"1": {}, "6": {}}, owners=owners).users() == [], "not known of all"
    path.write_text("1001:100000:65536\n")
    os.utime(path, ns=(1, 1))
    assert ids.owners({"1": 100000}) == {"1": 1001}
    path.unlink()
    assert ids.owners({"1": 100000}) == {"1": 100000}


def test_ranges_within_ranges(tmp_path):
    """The one that begins last; a user may have a part of another one's range."""
    path = tmp_path / "subuid"
    path.write_text("3:500:10\n1:100:1000\n2:200:10\n4:600:1\n")
    owners = SubordinateIds(path).owners({uid: uid for uid in (99, 100, 205, 210, 509, 511, 600, 1099, 1100)})
    assert owners == {99: 99, 100: 1, 205: 2, 210: 1, 509: 3, 511: 1, 600: 4, 1099: 1, 1100: 1100}


@pytest.mark.parametrize("kind", ["large", "directory"])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path, monkeypatch, kind):
    """A part of it would make one user several."""
    monkeypatch.setattr(subordinate_ids, "MAX_BYTES", 30)
    path = tmp_path / "subuid"
    if kind == "large":
        path.write_text("1000:100000:65536\n" * 2)
    else:
        path.mkdir()
    assert SubordinateIds(path).owners({"1": 100000}) == {}
