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
from random import Random

import pytest
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import POLL_S, Patience, wait_for

from fabricpulse.core._siphash import siphash24
from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus, raw_now_ns
from fabricpulse.core.shm.probe_ring import HEADER, INBOUND, OUTBOUND, SAMPLE
from fabricpulse.core.shm.virtual_clock import ENV, VirtualClockWriter
from fabricpulse.mesh import _probe_engine as native

POSITION, TRAIN, ABILITIES, SENT, SENT_VALID, SENT_STAMP = 5, 32, 39, 40, 45, 48
RX_VALID, SLOPE, RX_STAMP, MAC = 85, 86, 88, 112
KEY = bytes(16)
NS = 10**9


@dataclass
class Relay:
    """Between two engines, each of which takes it for the other. brought : how many packets of each end had a stamp of
    their own train, by their place in it. lead_ns : of each stamp in packets of the first engine, ahead of the raw
    clock as it came by; all have the same constant in them. without : bytes that engines of the last release leave
    zero, in what the second engine sends.
    """

    port: int
    without: tuple[int, ...]
    brought: list[list[int]] = field(default_factory=lambda: [[0] * 3, [0] * 3])
    relayed: list[int] = field(default_factory=lambda: [0, 0])
    lead_ns: list[int] = field(default_factory=list)
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
        if sender == 0:
            self.lead_ns += [
                struct.unpack_from("<q", packet, at)[0] - raw_now_ns()
                for valid, at in ((SENT_VALID, SENT_STAMP), (RX_VALID, RX_STAMP))
                if packet[valid]
            ]
        if sender == 1 and self.without:
            for place in self.without:
                packet[place] = 0
            packet[MAC:] = struct.pack("<Q", siphash24(KEY, bytes(packet[:MAC])))
        return bytes(packet)

    def stop(self) -> None:
        """Ends run()."""
        self._over.set()


@contextlib.contextmanager
def exchanged(
    directory: Path, without: tuple[int, ...] = (), ppm: float = 0.0, spacing_ns: int | None = None
) -> Iterator[Relay]:
    """Two engines that exchange trains. ppm : by which fleet time is faster than the clock of both. spacing_ns : of the
    packets of a train.
    """
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
        if spacing_ns is not None:
            settings.spacing_ns = spacing_ns
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


def test_no_stamp_is_wrong_that_was_made_after_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the host clock fall between the reading of a tick and a stamp that its train brings; and after the first
    engine has received something. By 15 ms each, as further ones are given up anyway.
    """
    page = tmp_path / "virtual-clock"
    clock, ahead_ns, random = VirtualClockWriter(page), 0, Random(1)
    clock.append(0, 0, 0)
    monkeypatch.setenv(ENV, str(page))
    # A tenth of the time is between the first packet of a train and the last.
    with exchanged(tmp_path, spacing_ns=1_000_000) as relay:
        wait_for(lambda: relay.brought[0][2] > 20, 60, "stamps that come with their trains")
        most_ns, before, brought = max(relay.lead_ns), len(relay.lead_ns), relay.brought[0][2]
        for _ in range(150):
            wait(relay, 6)
            now_ns = time.time_ns() + random.randrange(20_000_000)
            while time.time_ns() < now_ns:
                pass
            ahead_ns += 15_000_000
            clock.append(now_ns, ahead_ns, 0)
        wait(relay, 30)
    assert len(relay.lead_ns) > before + 300
    assert relay.brought[0][2] > brought
    assert max(relay.lead_ns) < most_ns + 5_000_000
