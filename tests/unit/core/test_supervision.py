"""A daemon lives as long as its tasks."""

import asyncio
import logging

import pytest

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.supervision import TaskFailedError, supervised


async def endless() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise KeyError("edge")


async def ends() -> None:
    pass


async def cancels_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (fails, "task solver of this daemon failed: KeyError: 'edge'"),
        (ends, "task solver of this daemon ended by itself"),
        (cancels_itself, "task solver of this daemon was cancelled"),
    ],
)
async def test_a_task_that_ends_fails_the_daemon(work, message, caplog) -> None:
    """The daemon is not ready any more, its body and other tasks are cancelled, and it ends with the reason."""
    life = Lifetime()
    with caplog.at_level(logging.ERROR), pytest.raises(TaskFailedError) as failed:
        async with supervised(life) as tasks:
            other = tasks.start("other", endless())
            life.ready()
            assert life.is_ready
            tasks.start("solver", work())
            await life.stopped()

    assert str(failed.value) == message
    assert failed.value.exit_code == 1
    assert other.cancelled()
    assert not life.is_ready
    assert life.not_ready == message
    assert [vars(record)["fields"]["task"] for record in caplog.records] == ["solver"]
    if work is fails:
        assert "KeyError" in caplog.text  # the traceback


async def test_the_end_of_the_body_cancels_the_tasks() -> None:
    """An order to stop ends the tasks, whose own ends are awaited, and nothing is raised."""
    life = Lifetime()
    cleaned = []

    async def cleans_up() -> None:
        try:
            await endless()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async with supervised(life) as tasks:
        tasks.start("cleans up", cleans_up())
        await asyncio.sleep(0)
        life.stop()
        await life.stopped()

    assert cleaned == [True]
    assert life.not_ready == "it is stopping"


async def test_what_the_body_raises_passes_unchanged() -> None:
    """The command line prints a UserError as one sentence: it is not wrapped into a group."""
    with pytest.raises(LookupError, match="address"):
        async with supervised(Lifetime()) as tasks:
            tasks.start("other", endless())
            await asyncio.sleep(0)
            raise LookupError("address")


async def test_a_cancelled_body_is_cancelled() -> None:
    """A daemon that is stopped while it starts is cancelled, and so are its tasks."""
    started = asyncio.Event()

    async def body() -> None:
        async with supervised(Lifetime()) as tasks:
            tasks.start("other", endless())
            started.set()
            await endless()

    task = asyncio.create_task(body())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_may_end() -> None:
    """Such a task may return or be cancelled; it must not raise."""
    life = Lifetime()
    async with supervised(life) as tasks:
        await tasks.start("once", ends(), may_end=True)
        task = tasks.start("once more", endless(), may_end=True)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        life.ready()
        assert life.is_ready
    with pytest.raises(TaskFailedError):
        async with supervised(life) as tasks:
            tasks.start("once", fails(), may_end=True)
            await life.stopped()


async def test_an_error_while_stopping_is_not_lost() -> None:
    """A task that fails in its clean-up fails the daemon, too."""

    async def stumbles() -> None:
        try:
            await endless()
        finally:
            raise OSError("the disk is full")

    with pytest.raises(TaskFailedError, match="the disk is full"):
        async with supervised(Lifetime()) as tasks:
            tasks.start("stumbles", stumbles())
            await asyncio.sleep(0)


async def test_nothing_starts_once_it_stops() -> None:
    """A task cannot be left behind by starting it late."""
    async with supervised(Lifetime()) as tasks:
        pass
    with pytest.raises(RuntimeError, match="stopping"):
        tasks.start("late", ends())
