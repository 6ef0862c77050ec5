"""TX stamps that come with their own train, also where one engine of two is of a release that does not know of them."""

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import POLL_S, Patience, wait_for

from fabricpulse.core._siphash import siphash24
from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus, raw_now_ns
from fabricpulse.core.shm.probe_ring import HEADER, INBOUND, OUTBOUND, SAMPLE
from fabricpulse.mesh import _probe_engine as native

POSITION, TRAIN, ABILITIES, SENT, SENT_VALID, SLOPE, MAC = 5, 32, 39, 40, 45, 86, 112
KEY = bytes(16)
NS = 10**9


@dataclass
class Relay:
    """Between two engines, each of which takes it for the other. brought : how many packets of each end had a stamp of
    their own train, by their place in it. without : bytes that engines of the last release leave zero, in what the
    second engine sends.
    """

    port: int
    without: tuple[int, ...]
    brought: list[list[int]] = field(default_factory=lambda: [[0] * 3, [0] * 3])
    relayed: list[int] = field(default_factory=lambda: [0, 0])
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until stop(): what comes for the one leaves by the socket that stands for its sender."""
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            sockets = [
                stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)
            ]
            for number, sock in enumerate(sockets):
                sock.bind((f"127.0.0.{12 + number}", self.port))
                selector.register(sock, selectors.EVENT_READ, number)
            while not self._over.is_set():
                for key, _ in selector.select(0.05):
                    receiver = key.data
                    packet = bytearray(sockets[receiver].recv(256))
                    sockets[1 - receiver].sendto(
                        self._passed(1 - receiver, packet), (f"127.0.0.{2 + receiver}", self.port)
                    )

    def _passed(self, sender: int, packet: bytearray) -> bytes:
        self.relayed[sender] += 1
        if packet[TRAIN : TRAIN + 4] == packet[SENT : SENT + 4] and packet[SENT_VALID]:
            self.brought[sender][packet[POSITION]] += 1
        if sender == 1 and self.without:
            for place in self.without:
                packet[place] = 0
            packet[MAC:] = struct.pack("<Q", siphash24(KEY, bytes(packet[:MAC])))
        return bytes(packet)

    def stop(self) -> None:
        """Ends run()."""
        self._over.set()


@contextlib.contextmanager
def exchanged(directory: Path, without: tuple[int, ...] = (), ppm: float = 0.0) -> Iterator[Relay]:
    """Two engines that exchange trains. ppm : by which fleet time is faster than the clock of both."""
    relay = Relay(reserved_port(), without)
    thread = threading.Thread(target=relay.run)
    engines, writers = [], []
    for number in range(2):
        place = directory / f"h{number}"
        place.mkdir()
        writers.append(ClockPageWriter(place / "clock"))
        raw_ns, now_ns = raw_now_ns(), time.time_ns()
        # One line for both: they agree, however fast their corrections change.
        line = ClockLine(0, NS, round(ppm * 1e6)) if ppm else ClockLine(raw_ns, now_ns, 0)
        host = ClockLine(now_ns, raw_ns, 0)
        writers[number].write(
            ClockPage(
                *(ClockStatus.SYNCHRONIZED, line, line, raw_ns, 1_000, 250, raw_ns + 600 * NS),
                *(host, host, now_ns, 0, 0),
            )
        )
        settings = native.Settings()
        settings.host, settings.port, settings.paths, settings.sweep = f"h{number}", relay.port, 1, 0
        settings.bind_device = False
        settings.ring_path, settings.clock_path = str(place / "ring"), str(place / "clock")
        engine = native.ProbeEngine(settings)
        engine.set_keys([KEY])
        engine.configure(
            [("lo", "rail0", f"127.0.0.{2 + number}")],
            [(0, f"h{1 - number}", "lo", "rail0", f"127.0.0.{13 - number}")],
        )
        engines.append(engine)
    try:
        thread.start()
        for engine in engines:
            engine.start()
        yield relay
    finally:
        # Whatever was started: the thread would keep the test run from ending.
        relay.stop()
        for engine in engines:
            engine.stop()
        if thread.ident is not None:
            thread.join()
        assert not any(writer.removed() for writer in writers)


def doubts(directory: Path) -> int:
    """How often the first engine has taken its clock for one that moves."""
    return int(HEADER.unpack_from((directory / "h0" / "ring").read_bytes())[-1])


def by_direction(directory: Path) -> list[list[tuple[int, int]]]:
    """Train and which packets have a TX stamp, of all samples that the first engine has written."""
    data = (directory / "h0" / "ring").read_bytes()
    header = HEADER.unpack_from(data)
    capacity, begin, written = header[6], header[8], header[13]
    found = list(SAMPLE.iter_unpack(data[begin : begin + min(written, capacity) * SAMPLE.size]))
    return [[(s[2], s[7]) for s in found if s[5] == direction] for direction in (INBOUND, OUTBOUND)]


def wait(relay: Relay, packets: int) -> None:
    """Until both ends have sent so many more."""
    patience, before = Patience(60), list(relay.relayed)
    while any(now - then < packets for now, then in zip(relay.relayed, before, strict=True)):
        assert patience.left(), relay
        time.sleep(POLL_S)  # a counter of another thread grows


def test_the_last_packet_of_a_train_brings_a_stamp_of_it(tmp_path: Path) -> None:
    """To whom takes it; and samples are of whole trains, each once, as before."""
    with exchanged(tmp_path) as relay:
        # On a busy machine the relay is late with most of them.
        wait_for(lambda: min(of[2] for of in relay.brought) > 50, 60, "stamps that come with their trains")
        wait_for(lambda: min(map(len, by_direction(tmp_path))) >= 60, 60, "samples")
    assert [of[:2] for of in relay.brought] == [[0, 0], [0, 0]]
    for trains in by_direction(tmp_path):
        assert len({train for train, _ in trains}) == len(trains)
        assert sum(valid & 6 == 6 for _, valid in trains) > 0.9 * len(trains)


def test_an_engine_of_the_last_release_gets_none(tmp_path: Path) -> None:
    """It would take the one stamp for all that there is of the train."""
    with exchanged(tmp_path, without=(ABILITIES,)) as relay:
        wait(relay, 300)
    assert relay.brought[0] == [0, 0, 0]
    assert relay.brought[1][2] > 0


@pytest.mark.parametrize(("tells", "doubted"), [(False, False), (True, True)])
def test_who_does_not_tell_how_fast_it_is_corrected_is_no_reason_for_doubt(
    tmp_path: Path, tells: bool, doubted: bool
) -> None:
    """400 ppm for 20 ms are 8 us. That it would be one if it had said that it is corrected by nothing shows that the
    test could fail.
    """
    without = (SLOPE, SLOPE + 1) if tells else (ABILITIES, SLOPE, SLOPE + 1)
    with exchanged(tmp_path, without=without, ppm=400.0) as relay:
        wait(relay, 900)  # 6 s
        assert (doubts(tmp_path) > 0) == doubted
