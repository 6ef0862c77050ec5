"""The agent's part in tests of bandwidth by RDMA WRITE: as of other transfers, the only one of a NIC without a job."""

import asyncio
import threading
from collections import Counter
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import clip
from fabricpulse.audit.node.jobs import QueuePairWatch
from fabricpulse.audit.node.queue_pair import NoRdmaError
from fabricpulse.audit.node.rdma_transfer import RdmaListener, rdma_send
from fabricpulse.audit.node.rdma_wire import (
    RDMA_RECEIVE_PATH,
    RDMA_SEND_PATH,
    RdmaReceiveAnswer,
    RdmaReceiveRequest,
    RdmaSendRequest,
)
from fabricpulse.audit.node.transfer import TransferError
from fabricpulse.core.log import get_logger
from fabricpulse.core.run_dir import plugin_dir

log = get_logger(__name__)
T = TypeVar("T", bound=msgspec.Struct)


class Nics(Protocol):
    """What of the agent all transfers share. made : by direction. receiving : those that wait for their sender, or
    have it."""

    made: Counter[str]
    receiving: set[asyncio.Task[None]]

    def reader(self) -> HostReader:
        """Of this host."""

    def bounded(self, rate_bps: int) -> int:
        """What a NIC of this host may be asked to send."""

    async def claim(self, device: str, direction: str, *, duplex: bool) -> threading.Event:
        """The right to the only transfer of a NIC. Raises HTTPConflict."""

    def release(self, device: str, stop: threading.Event) -> None:
        """Gives it back."""

    async def watched(
        self,
        work: Any,
        stop: threading.Event,
        request: web.Request | None = None,
        watch: QueuePairWatch | None = None,
    ) -> tuple[Any, str]:
        """What `work` gives, and why it was stopped."""

    async def decoded(self, request: web.Request, kind: type[T]) -> T:
        """The request, if it is authorized. Raises HTTPUnauthorized, HTTPBadRequest."""

    def refuse(self, reason: str) -> None:
        """Counts a request that is refused."""


class RdmaService:
    """Answers for one agent."""

    def __init__(self, agent: Nics) -> None:
        self._agent = agent

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Its requests."""
        router.add_post(RDMA_RECEIVE_PATH, self._serve_receive)
        router.add_post(RDMA_SEND_PATH, self._serve_send)

    def _watch(self, device: str) -> QueuePairWatch:
        return QueuePairWatch(self._agent.reader(), device, plugin_dir())

    async def _serve_receive(self, request: web.Request) -> web.Response:
        agent = self._agent
        wanted = await agent.decoded(request, RdmaReceiveRequest)
        stop = await agent.claim(wanted.device, "received", duplex=False)
        try:
            # In a thread: a device that is dead may take long to open.
            listener = await asyncio.to_thread(RdmaListener, wanted)
        except NoRdmaError as error:
            agent.release(wanted.device, stop)
            return _json(RdmaReceiveAnswer(error=clip(str(error), 256)))
        except (OSError, ValueError) as error:
            agent.release(wanted.device, stop)
            agent.refuse("invalid")
            raise web.HTTPBadRequest(text=f"{wanted.device} {wanted.address}: {error}\n") from error
        except BaseException:
            agent.release(wanted.device, stop)
            raise

        async def take() -> None:
            try:
                work = asyncio.to_thread(listener.run, stop)
                await agent.watched(work, stop, watch=self._watch(wanted.device))
            except (TransferError, NoRdmaError, OSError) as error:
                log.info("an RDMA test was not received to its end", device=wanted.device, error=str(error))
            finally:
                listener.close()
                agent.release(wanted.device, stop)

        agent.made["received"] += 1
        task = asyncio.create_task(take())
        agent.receiving.add(task)
        task.add_done_callback(agent.receiving.discard)
        return _json(listener.answer)

    async def _serve_send(self, request: web.Request) -> web.Response:
        agent = self._agent
        wanted = await agent.decoded(request, RdmaSendRequest)
        stop = await agent.claim(wanted.device, "sent", duplex=False)
        try:
            limit_bps = agent.bounded(wanted.rate_bps)
            wanted = msgspec.structs.replace(wanted, rate_bps=limit_bps)
            agent.made["sent"] += 1
            work = asyncio.to_thread(rdma_send, wanted, stop)
            result, why = await agent.watched(work, stop, request, self._watch(wanted.device))
            result = msgspec.structs.replace(result, limit_bps=float(limit_bps))
            if why:
                result = msgspec.structs.replace(result, error=clip(why, 256))
        finally:
            agent.release(wanted.device, stop)
        return _json(result)


def _json(document: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
