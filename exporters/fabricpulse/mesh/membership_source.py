"""Where the membership comes from: a file, the coordinator, or DNS; read again when it may have changed."""

import asyncio
import socket
from collections import defaultdict
from pathlib import Path

import aiohttp

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.files import FileStamp
from fabricpulse.core.fleet.membership import Host, Membership, Nic, load_membership
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.mesh.config import NO_MEMBERSHIP, MembershipSource

_PATIENCE_S = 5.0  # with DNS


class MembershipReader:
    """Reads one source. `read` is cheap when nothing can have changed."""

    def __init__(self, source: MembershipSource) -> None:
        """Raises ConfigError when no source is configured."""
        if not (source.file or source.url or source.dns):
            raise ConfigError(NO_MEMBERSHIP)
        self._source = source
        self._stamp = FileStamp(None)
        self._etag = ""
        self._look_up: asyncio.Task[Membership] | None = None

    async def read(self) -> Membership | None:
        """The membership, or None when it is certain that it has not changed since the last call.

        Raises UserError when it cannot be had; the next call tries again.
        """
        if self._source.file:
            return await self._read_file(Path(self._source.file))
        if self._source.url:
            return await self._read_url(self._source.url)
        return await self._read_dns()

    async def _read_file(self, path: Path) -> Membership | None:
        stamp = await asyncio.to_thread(FileStamp.of, path)
        if stamp.exists and stamp == self._stamp:
            return None
        self._stamp = FileStamp(None)
        membership = await asyncio.to_thread(load_membership, path)
        self._stamp = stamp
        return membership

    async def _read_url(self, url: str) -> Membership | None:
        headers = {"If-None-Match": self._etag} if self._etag else {}
        try:
            async with (
                HttpClient(self._source.http_client) as client,
                client.get(url, headers=headers) as response,
            ):
                if response.status == 304:
                    return None
                if response.status != 200:
                    raise UserError(f"cannot read the membership from {url}: HTTP status {response.status}")
                body = await read_body(response)
                etag = response.headers.get("ETag", "")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UserError(f"cannot read the membership from {url}: {describe(error)}") from error
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"the membership from {url} is not UTF-8 text: {error.reason}") from error
        try:
            membership = parse_config(text, Membership, url)
        except ConfigError as error:  # a server that has just started knows nobody yet: no reason to end
            raise UserError(str(error)) from error
        self._etag = etag
        return membership

    async def _read_dns(self) -> Membership:
        names = ", ".join(self._source.dns.values())
        # The resolver gives up only after many seconds, and blocks its thread until then: the next call waits for
        # the same look-up instead of taking another thread.
        if self._look_up is None:
            self._look_up = asyncio.create_task(self._look_up_all())
        done, _ = await asyncio.wait([self._look_up], timeout=_PATIENCE_S)
        if not done:
            raise UserError(f"DNS does not answer for {names} within {_PATIENCE_S:g} s")
        look_up, self._look_up = self._look_up, None
        return look_up.result()

    async def _look_up_all(self) -> Membership:
        loop = asyncio.get_running_loop()
        hosts: dict[str, list[Nic]] = defaultdict(list)
        for network, name in sorted(self._source.dns.items()):
            try:
                found = await loop.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
            except OSError as error:
                raise UserError(
                    f"cannot look up {name}, the members of network {network}: {error.strerror}"
                ) from error
            except UnicodeError as error:
                raise UserError(
                    f"{name!r}, the members of network {network}, is no host name: a label is empty or above 63 "
                    "characters"
                ) from error
            for address in sorted({str(entry[4][0]) for entry in found}):
                try:
                    full, _ = await loop.getnameinfo((address, 0), socket.NI_NAMEREQD)
                except OSError as error:
                    raise UserError(
                        f"member {address} of network {network} has no name: {error.strerror}; add a PTR record"
                    ) from error
                hosts[full.split(".", 1)[0]].append(
                    Nic(device=self._source.devices[network], address=address, network=network)
                )
        membership = Membership(
            hosts=tuple(Host(name=name, nics=tuple(nics)) for name, nics in sorted(hosts.items()))
        )
        try:
            for host in membership.hosts:
                host.validate()
            membership.validate()
        except ValueError as error:
            what = str(error).partition(" - at ")[0]
            raise UserError(f"the membership from DNS makes no sense: {what}") from error
        return membership
