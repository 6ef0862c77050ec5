"""What the log says of whose stamps are used of a NIC: each change once."""

from types import SimpleNamespace

import pytest
from tests.unit.mesh.synthetic import nic_state

from fabricpulse.mesh import nic_stamps


def test_each_change_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing while a clock is being learned; one that never comes, comes, is lost, comes again, is not permitted."""
    said: list[tuple[str, str]] = []
    levels = ("info", "warning")
    log = {level: lambda text, _level=level, **_: said.append((_level, text)) for level in levels}
    monkeypatch.setattr(nic_stamps, "log", SimpleNamespace(**log))
    stamps, learning = nic_stamps.StampLog(), nic_state(1)._replace(phc_good=0)
    used, refused = learning._replace(phc_good=1), learning._replace(phc_errno=13)
    counts: list[int] = []
    for state in (nic_state(0), learning, used, learning, used, refused):
        for _ in range(20):
            stamps.check({"eth0": state})
            if state is learning and len(said) == 0 and len(counts) == 1:
                break  # not for long
        counts.append(len(said))
    assert counts == [0, 0, 1, 2, 3, 4]
    assert [level for level, _ in said] == ["info", "warning", "info", "warning"]


def test_one_that_never_comes_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(nic_stamps, "log", SimpleNamespace(warning=lambda text, **_: said.append(text)))
    stamps = nic_stamps.StampLog()
    for check in range(50):
        stamps.check({"eth0": nic_state(1)._replace(phc_good=0)})
        assert len(said) == (check >= nic_stamps._PATIENCE)


@pytest.mark.parametrize(("timestamps", "reason"), [("auto", "set it up"), ("hardware", "ethtool -T")])
def test_a_nic_without_own_stamps_is_said_once(
    timestamps: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are asked for: who has set it would look for them in vain."""
    said: list[str] = []
    monkeypatch.setattr(nic_stamps, "log", SimpleNamespace(info=lambda text, **f: said.append(f["reason"])))
    without = nic_state(0)._replace(phc=-1, phc_errno=0, phc_good=0)
    stamps, quiet = nic_stamps.StampLog(timestamps), nic_stamps.StampLog("software")
    for _ in range(3):
        stamps.check({"eth0": without, "eth1": nic_state(1)._replace(phc=0, phc_good=0)})
        quiet.check({"eth0": without})
    assert len(said) == 1
    assert reason in said[0]
