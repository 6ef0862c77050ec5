"""Ports of the lab shown outside it: a listener on 127.0.0.1 whose connections go on inside a node."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

OpenSocket = Callable[[], socket.socket]

_CHUNK = 1 << 16


class Forwarder:
    """One thread with an event loop that carries all forwarded connections of a lab."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab-forward", daemon=True)
        self._thread.start()

    def listen(self, open_socket: OpenSocket, target: tuple[str, int], host: str, port: int) -> int:
        """Listens on host:port (0 = any) and connects each caller to `target` by a socket from `open_socket`.

        Returns the port. Raises OSError when the port is taken.
        """

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(reader, writer, open_socket, target))
            self._connections.add(task)
            try:
                await task
            finally:
                self._connections.discard(task)
                writer.close()

        async def start() -> asyncio.Server:
            return await asyncio.start_server(accept, host, port)

        server = asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Ends all connections and the thread."""

        async def stop() -> None:
            for server in self._servers:
                server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        open_socket: OpenSocket,
        target: tuple[str, int],
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            inside = await loop.run_in_executor(None, open_socket)
        except Exception:  # the lab has closed; the caller sees its connection end
            return
        inside.setblocking(False)
        try:
            await loop.sock_connect(inside, target)
            inner_reader, inner_writer = await asyncio.open_connection(sock=inside)
        except OSError:
            inside.close()
            return
        with suppress(OSError):
            await _both(_pump(reader, inner_writer), _pump(inner_reader, writer))
        inner_writer.close()


async def _both(one: Awaitable[None], other: Awaitable[None]) -> None:
    await asyncio.gather(one, other)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
