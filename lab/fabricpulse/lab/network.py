"""Sockets of this process that live in a node, and HTTP by them."""

import http.client
import socket as sockets
from collections.abc import Mapping
from urllib.parse import urlsplit

from fabricpulse.core.errors import UserError
from fabricpulse.lab.fabric import Fabric
from fabricpulse.lab.forward import Forwarder
from fabricpulse.lab.runtime import LabRuntime


class LabNetwork(LabRuntime):
    """The middle of `Lab`: talking to what runs in it."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self._forwarder: Forwarder | None = None

    def socket(
        self,
        node: str,
        kind: sockets.SocketKind = sockets.SOCK_STREAM,
        family: sockets.AddressFamily = sockets.AF_INET,
        protocol: int = 0,
    ) -> sockets.socket:
        """A new socket of this process that lives in the network of `node`: bind, connect, send as if there."""
        _, (descriptor,) = self.request(
            "socket", node=node, family=int(family), type=int(kind) & 0xF, protocol=protocol
        )
        return sockets.socket(fileno=descriptor)

    def connect(self, node: str, address: str, port: int, timeout: float = 5.0) -> sockets.socket:
        """A TCP connection from `node`. address : IP, or a name of the lab (`h1`, `h1-rail0`, `localhost`)."""
        resolved = self.resolve(address)
        sock = self.socket(
            node, sockets.SOCK_STREAM, sockets.AF_INET6 if ":" in resolved else sockets.AF_INET
        )
        sock.settimeout(timeout)
        try:
            sock.connect((resolved, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def resolve(self, name: str) -> str:
        """An IP address for a name of the lab; an address is returned as it is."""
        for line in self.fabric.hosts_file.splitlines():
            address, *names = line.split()
            if name in names:
                return address
        return name

    def http(
        self,
        node: str,
        url: str,
        *,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 5.0,
    ) -> tuple[int, str]:
        """One HTTP request as if from `node`; returns (status, body). Names of the lab resolve. Raises OSError."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise UserError(f"{url!r} is no http:// URL")
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
        connection.sock = self.connect(node, parts.hostname, parts.port or 80, timeout)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, target, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def http_get(self, node: str, url: str, timeout: float = 5.0) -> str:
        """The body of `url` as seen from `node`. Raises UserError if its status is not 200, OSError without answer."""
        status, body = self.http(node, url, timeout=timeout)
        if status != 200:
            raise UserError(f"GET {url} from {node} answered {status}: {body[:500].strip()}")
        return body

    def forward(self, node: str, port: int, *, host: str = "127.0.0.1", outside_port: int = 0) -> int:
        """Shows 127.0.0.1:`port` of `node` outside the lab; returns the outside port on 127.0.0.1.

        Raises UserError when `outside_port` is taken.
        """
        self.require_node(node)
        if self._forwarder is None:
            self._forwarder = Forwarder()
        try:
            return self._forwarder.listen(lambda: self.socket(node), (host, port), "127.0.0.1", outside_port)
        except OSError as error:
            raise UserError(
                f"cannot show port {port} of {node} on 127.0.0.1:{outside_port}: {error.strerror}; choose another port"
            ) from error

    def _end_forwards(self) -> None:
        if self._forwarder is not None:
            self._forwarder.close()
            self._forwarder = None
