"""Who may do what at the control socket: the job's user and root everything, a group may look, nobody else anything."""

import grp
import json
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.plugin.control_job import control_job

from fabricpulse.plugin_ipc.control import ControlClient, ControlError

pytestmark = pytest.mark.root

STRANGER, NOBODYS_GROUP = 65534, 65534  # no process of a job runs as these
LOOKERS = next(group for group in grp.getgrall() if group.gr_gid not in (0, NOBODYS_GROUP))


def as_stranger(groups: list[int], action: Callable[[], Any]) -> Any:
    """What `action` returns to a process of another user that is in these groups."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(NOBODYS_GROUP)
            os.setuid(STRANGER)
            answer = action()
        except BaseException as error:  # what it died of is what the parent has to know
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return json.loads(said)


def ask(path: Path, **message: object) -> Any:
    """The answer to one request, or why there is none."""
    try:
        with ControlClient(path) as client:
            return client.call(message)
    except ControlError as error:
        return str(error)


CHANGE: dict[str, Any] = {"op": "detail", "op_id": "x", "generation": 1, "level": 0}


def test_a_stranger_is_not_let_in(profiler_host: Path) -> None:
    """By default nobody but the job's user and root reaches the socket."""
    with control_job(profiler_host) as path:
        assert "Permission denied" in as_stranger([LOOKERS.gr_gid], partial(ask, path, op="hello"))
        assert ask(path, **CHANGE)["ok"]


def test_a_group_may_look_and_change_nothing(profiler_host: Path) -> None:
    with control_job(
        profiler_host, FABRICPULSE_CONTROL_GROUP=LOOKERS.gr_name, FABRICPULSE_DETAIL="1"
    ) as path:
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, LOOKERS.gr_gid)
        for op in ("hello", "status", "events"):
            assert as_stranger([LOOKERS.gr_gid], partial(ask, path, op=op))["ok"]
        refused = as_stranger([LOOKERS.gr_gid], partial(ask, path, **CHANGE))
        assert refused["error"]["code"] == "denied"
        assert ask(path, op="status")["detail"] == 1
        assert "Permission denied" in as_stranger([], partial(ask, path, op="hello"))


def test_credentials_decide_even_where_the_mode_does_not(profiler_host: Path) -> None:
    """Whoever opens the socket's mode to all gives no right with it."""
    with control_job(profiler_host) as path:
        path.chmod(0o666)
        messages: tuple[dict[str, Any], ...] = ({"op": "hello"}, {"op": "status"}, CHANGE)
        for message in messages:
            answer = as_stranger([], partial(ask, path, **message))
            assert answer["error"]["code"] == "denied"
        assert ask(path, **CHANGE)["result"] == "applied"
