"""ICMP echoes of a size that may not be fragmented, from one NIC (RFC 792, RFC 4443). Linux.

The kernel of the other host answers: no daemon there makes a packet for a packet. By datagram sockets, which need no
privilege where net.ipv4.ping_group_range has the user's group, or else by raw ones (CAP_NET_RAW). IP_PMTUDISC_PROBE
sends packets whole with "do not fragment" whatever path MTU the kernel has learned.
"""

import asyncio
import errno
import ipaddress
import os
import socket
import struct
import time

from fabricpulse.audit.node.own_route import route_error
from fabricpulse.audit.node.wire import EchoResult, EchoTest

_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_HEADER = struct.Struct("!BBHHH")
COUNT = 3
PATIENCE_S = 0.5
# Echoes of one agent that are under way at a time: 8 packets of 9,000 bytes each round trip.
ECHO_TESTS_AT_A_TIME = 8


async def echo(test: EchoTest, *, count: int = COUNT, patience_s: float = PATIENCE_S) -> EchoResult:
    """Sends up to `count` echoes, each after the answer to the one before or after `patience_s`; raises nothing.

    Two answers are proof enough; the third is sent when one was lost.
    """
    if test.source and (error_name := route_error(test.device, test.source, test.address)):
        return EchoResult(0, 0, error_name)
    try:
        address = ipaddress.ip_address(test.address)
        link = _socket(address.version, test.device, test.source)
    except (OSError, ValueError) as error:
        return EchoResult(0, 0, _name(error))
    header = 20 if address.version == 4 else 40
    payload = os.urandom(8) + bytes(max(0, test.size - header - 8 - 8))
    sent = answered = 0
    error_name, best = "", 0.0
    try:
        loop = asyncio.get_running_loop()
        for number in range(count):
            if answered >= 2:
                break
            packet = _packet(address.version, number + 1, payload)
            sent += 1
            begun = time.monotonic()
            try:
                await asyncio.wait_for(loop.sock_sendto(link, packet, (str(address), 0)), patience_s)
                async with asyncio.timeout(patience_s):
                    while not _is_answer(
                        await loop.sock_recv(link, 65_535), address.version, number + 1, payload
                    ):
                        pass
            except TimeoutError:
                continue
            except OSError as error:
                error_name = _name(error)
                if error.errno == errno.EMSGSIZE:
                    break
                await asyncio.sleep(0)
                continue
            answered += 1
            elapsed = time.monotonic() - begun
            best = min(best or elapsed, elapsed)
    finally:
        link.close()
    return EchoResult(sent, answered, error_name, best)


def _socket(version: int, device: str, source: str) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    protocol = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
    try:
        link = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, protocol)
    except PermissionError:
        link = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        link.setblocking(False)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        if source:
            # Policy rules choose the table by it.
            link.bind((source, 0))
        if version == 4:
            link.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            link.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
    except BaseException:
        link.close()
        raise
    return link


def _packet(version: int, number: int, payload: bytes) -> bytes:
    kind = 8 if version == 4 else 128
    # The kernel sets the identifier of a datagram socket; a raw one needs a checksum of ours (RFC 1071).
    bare = _HEADER.pack(kind, 0, 0, os.getpid() & 0xFFFF, number) + payload
    return _HEADER.pack(kind, 0, checksum(bare), os.getpid() & 0xFFFF, number) + payload


def checksum(data: bytes) -> int:
    """Of the Internet, RFC 1071."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _is_answer(data: bytes, version: int, number: int, payload: bytes) -> bool:
    """A raw IPv4 socket gives the IP header too, and everybody's answers: ours have our random bytes."""
    if version == 4 and data[:1] and data[0] >> 4 == 4 and len(data) > 28 and data[0] != 0:
        data = data[(data[0] & 0xF) * 4 :]
    if len(data) < 8:
        return False
    kind, _, _, _, got = _HEADER.unpack_from(data)
    return kind in (0, 129) and got == number and data[8:] == payload


def _name(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__
