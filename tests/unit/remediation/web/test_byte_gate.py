"""Input that is worked on at a time has a bound in bytes."""

import asyncio

import pytest

from fabricpulse.remediation.receiver.web.byte_gate import ByteGate


async def test_in_the_order_in_which_they_came() -> None:
    """So many bytes at a time; small ones do not pass by a large one for ever, and one that is too large has its turn
    alone. What failed gives its room back."""
    gate, inside, log = ByteGate(10), dict[str, asyncio.Event](), []

    async def work(name: str, size: int, *, fails: bool = False) -> None:
        async with gate.hold(size):
            log.append((name, gate.held))
            inside[name] = asyncio.Event()
            await inside[name].wait()
            if fails:
                raise ValueError("failed")

    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(work("a", 4))
        failing = asyncio.create_task(work("b", 6, fails=True))
        await settle()
        group.create_task(work("large", 25))
        group.create_task(work("c", 1))
        await settle()
        assert log == [("a", 4), ("b", 10)]
        inside["b"].set()
        with pytest.raises(ValueError, match="failed"):
            await failing
        await settle()
        assert log[2:] == []
        inside["a"].set()
        await settle()
        assert log[2:] == [("large", 25)]
        inside["large"].set()
        await settle()
        assert log[3:] == [("c", 1)]
        inside["c"].set()
    assert gate.held == 0


async def test_who_waits_may_leave() -> None:
    """The next one has its turn then."""
    gate = ByteGate(10)

    async def pass_through(size: int) -> None:
        async with gate.hold(size):
            pass

    async with gate.hold(10):
        leaves = asyncio.create_task(pass_through(5))
        stays = asyncio.create_task(pass_through(3))
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.wait([leaves])
        assert not stays.done()
    await asyncio.wait_for(stays, 10)
    assert gate.held == 0
