"""Both ends of a transfer: over the loopback, what their hosts have dropped, and jobs that keep them away."""

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.hostinfo.host_tree import GpuHost
from tests.fixtures.waiting import Patience

from fabricpulse.audit.node import listener
from fabricpulse.audit.node.host_losses import HostCounts, HostLosses, host_counts, since
from fabricpulse.audit.node.jobs import JobWatch, in_use, job_on, traffic_on
from fabricpulse.audit.node.listener import TransferListener
from fabricpulse.audit.node.sender import send
from fabricpulse.audit.node.tcp_progress import TcpProgress, rates
from fabricpulse.audit.node.transfer import DATAGRAM, PATIENCE_S, TransferError, read_document
from fabricpulse.audit.node.wire import Hindered, Received, ReceiveRequest, SendRequest, TransferResult
from fabricpulse.audit.pair_tests.path_tests import (
    PathDirection,
)
from fabricpulse.audit.pair_tests.transfer_tests import Transferred, evaluate
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime


def test_rates_are_of_the_time_that_the_path_took() -> None:
    """1 Gb/s all the time; half of it, as a host was late; no rate of a stream that next to never pushed, or of one
    moment. Ticks of 10 ms that are missing of the whole are none."""
    before = TcpProgress(((1000, 1.0), (0, 0.0)), 5.0)
    half = 125_000_000 // 2

    def after(bits: int, *seconds: float) -> TcpProgress:
        (first, first_s), (second, second_s) = before.streams
        return TcpProgress(
            ((first + bits, first_s + seconds[0]), (second + bits, second_s + seconds[1])), 6.0
        )

    assert rates(before, after(half, 1.0, 1.0)) == (1e9, 1e9)
    assert rates(before, after(half, 0.985, 1.01)) == (1e9, 1e9)
    assert rates(before, after(half // 2, 0.5, 0.5)) == (5e8, 1e9)
    assert rates(before, after(half // 2, 0.1, 0.9)) == (5e8, None)
    assert rates(before, before) == (None, None)
    assert rates(None, before) == (None, None)


def ticking() -> FleetTime:
    return FleetTime(time.time_ns(), 500, ClockStatus.SYNCHRONIZED)


def over_loopback(stop: threading.Event, **changes: object) -> TransferResult:
    receiver = TransferListener(ReceiveRequest("lo", "127.0.0.1", "127.0.0.1", 2, 0.2), ticking)
    answer = receiver.answer

    def take() -> None:
        try:
            receiver.run(stop)
        except (TransferError, OSError):
            receiver.close()

    thread = threading.Thread(target=take)
    thread.start()
    fields = {"device": "lo", "address": "127.0.0.1", "peer": "127.0.0.1", "tcp_port": answer.tcp_port,
              "udp_port": answer.udp_port, "key": answer.key, "rate_bps": 200_000_000, "seconds": 0.2, "streams": 2,
              "datagrams": 200, "datagram_bytes": 1500}  # fmt: skip
    try:
        return send(SendRequest(**(fields | changes)), ticking, stop)  # type: ignore[arg-type]
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def test_a_transfer_over_the_loopback() -> None:
    """All datagrams arrive, with a delay; the rate is bounded by the one that was asked for."""
    result = over_loopback(threading.Event())
    assert result.error == ""
    assert result.sent == 200
    assert result.received is not None
    assert result.received.datagrams + result.received.overflowed == 200
    assert result.received.owd_ns is not None
    assert result.received.owd_ns > -1_000_000
    assert result.bps is not None
    # Pacing has a burst of some packets; the bound is on the load, a slow machine may be below.
    assert 0 < result.bps < 2 * 200_000_000


def test_a_receiver_that_is_late_counts_and_times_what_has_come() -> None:
    """The sender has ended long before this process reads: nothing of what the kernel took is lost or late, and what it
    takes a moment later counts, too."""
    receiver = TransferListener(ReceiveRequest("lo", "127.0.0.1", "127.0.0.1", 1, 0.1), lambda: None)
    answer = receiver.answer
    key = bytes.fromhex(answer.key)
    stop = threading.Event()
    with socket.socket(type=socket.SOCK_DGRAM) as link, socket.socket() as control:
        link.connect(("127.0.0.1", answer.udp_port))
        numbers = [n for n in range(500) if n != 250]
        for number in numbers:
            link.send(DATAGRAM.pack(key, number, 0, 0, 0, time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)))
        time.sleep(0.3)  # the datagrams wait in the socket, as behind a reader that has no processor
        control.connect(("127.0.0.1", answer.tcp_port))
        control.sendall(key + b".")

        def take() -> None:
            with suppress(TransferError, OSError):
                receiver.run(stop)

        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.1)  # the one that is late comes while the receiver still waits for it
        link.send(DATAGRAM.pack(key, 250, 0, 0, 0, 1))
        received = read_document(control, Received, stop, 30)
    stop.set()
    thread.join(30)
    assert received.datagrams + received.overflowed == 500
    [port] = received.by_port
    assert port.delay_ns is not None
    assert 0 <= port.delay_ns < 250_000_000


def taking(receiver: TransferListener, stop: threading.Event) -> tuple[threading.Thread, list[str]]:
    """Runs it in a thread; the errors that it ends with are added to the list."""
    raised: list[str] = []

    def take() -> None:
        try:
            receiver.run(stop)
        except TransferError as error:
            raised.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("goes", [True, False])
def test_a_receiver_does_not_wait_for_what_comes_no_more(goes: bool) -> None:
    """The sender has gone before its streams came; or it says that it has ended, while a stream still has bytes on the
    way, as one has on a path that loses much. The NIC is free for the next test at once, not after seconds."""
    receiver = TransferListener(ReceiveRequest("lo", "127.0.0.1", "127.0.0.1", 1, 0.1), lambda: None)
    answer = receiver.answer
    key, stop = bytes.fromhex(answer.key), threading.Event()
    thread, raised = taking(receiver, stop)
    address = ("127.0.0.1", answer.tcp_port)
    with socket.create_connection(address) as control:
        control.sendall(key + b".")
        read_document(control, Received, stop, 30)
        patience = Patience(PATIENCE_S / 2)
        if goes:
            control.close()
        else:
            with socket.create_connection(address) as stream:
                stream.sendall(key)
                control.sendall(b".")
                assert read_document(control, Hindered, stop, 30).starved_s >= 0
        thread.join(30)
    assert patience.left()
    assert raised == (["the sender has gone"] if goes else [])


@pytest.mark.parametrize("frozen", [True, False])
def test_a_sender_that_freezes_does_not_keep_the_nic(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stays, and the word that all are sent never comes: no test of the NIC could begin for a minute.
    A path that loses all datagrams looks alike, but that the word comes, and is a result however late."""
    monkeypatch.setattr(listener, "PATIENCE_S", 0.5)
    receiver = TransferListener(ReceiveRequest("lo", "127.0.0.1", "127.0.0.1", 1, 0.1), lambda: None)
    answer = receiver.answer
    key, stop = bytes.fromhex(answer.key), threading.Event()
    patience = Patience(30)
    with socket.socket(type=socket.SOCK_DGRAM) as link, socket.socket() as control:
        link.connect(("127.0.0.1", answer.udp_port))
        if frozen:
            link.send(DATAGRAM.pack(key, 0, 0, 0, 0, 1))
        control.connect(("127.0.0.1", answer.tcp_port))
        control.sendall(key)
        thread, raised = taking(receiver, stop)
        if not frozen:
            time.sleep(0.8)  # longer than the receiver waits for one that had begun
            control.sendall(b".")
            assert read_document(control, Received, stop, 30).datagrams == 0
            control.close()
        thread.join(60)
    assert patience.left()
    assert raised == ["the sender has fallen silent" if frozen else "the sender has gone"]


def test_datagrams_at_the_whole_rate() -> None:
    """Many in a call, each counted once at both ends, with its own number and source port; no more of them, and no
    faster, than was asked for. What the receiver had no room for it says."""
    result = over_loopback(threading.Event(), loss_seconds=0.5, rate_bps=100_000_000, source_ports=4)
    assert result.error == ""
    assert result.received is not None
    assert (
        result.received.datagrams + result.received.overflowed + result.received.host_dropped >= result.sent
    )
    # What leaves in bursts of a port is not compared by ports.
    assert (
        sum(count.datagrams for count in result.received.by_port) <= 200 == sum(result.sent_by_port.values())
    )
    # 1,538 bytes on the wire: 4,063 in half a second at the whole rate, calls of the 8 that it has in a millisecond.
    assert 200 + 8 <= result.sent <= 200 + 4063 + 32
    assert (result.sent - 200) % 8 == 0
    assert result.loss_bps is not None
    # Half of a call more fits into the last moment, and what is late by 2 ms may be made up for.
    assert result.loss_bps <= 1.05 * 100_000_000
    assert result.received.owd_ns is not None
    assert len(result.sent_by_port) == 4


def test_what_a_socket_has_no_room_for_is_counted_by_the_datagram(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts pieces of many: a receiver that is too slow must not make a path look lossy."""
    monkeypatch.setattr("fabricpulse.audit.node.listener._BUFFER", 1 << 16)
    result = over_loopback(threading.Event(), loss_seconds=0.3, rate_bps=4_000_000_000)
    assert result.received is not None
    assert result.received.pieces
    assert result.received.pieces < result.received.overflowed
    way = PathDirection(("a", "e0"), ("b", "e0"), "127.0.0.1", 1500)
    [loss] = [m for m in evaluate([Transferred(way, result)], 4e9, {})[0] if m.kind == "loss"]
    assert loss.ok is not False


def test_what_a_host_drops_itself_is_counted(tmp_path: Path) -> None:
    """Of all processors, in hexadecimal, and of the NIC; what begins anew or cannot be read excuses nothing."""
    statistics = tmp_path / "sys/class/net/e0/statistics"
    statistics.mkdir(parents=True)
    (tmp_path / "proc/net").mkdir(parents=True)
    for thread, waited in (("7", "2000000000"), ("8", "500000000")):
        (tmp_path / "proc/self/task" / thread).mkdir(parents=True)
        (tmp_path / "proc/self/task" / thread / "schedstat").write_text(f"1 {waited} 3\n")
    stat = tmp_path / "proc/stat"
    tick = os.sysconf("SC_CLK_TCK")
    stat.write_text(
        f"cpu 9 0 0 {8 * tick} {tick} 0 0 {7 * tick - 9} 0 0\n"
        f"cpu0 0 0 0 0 0 0 0 {3 * tick} 0 0\ncpu1 0 0 0 0 0 0 0 {4 * tick} 0 0\n"
    )
    (tmp_path / "proc/net/softnet_stat").write_text("0065 0000000a 0\n0064 00000010 0\n")
    (statistics / "rx_missed_errors").write_text("5\n")
    trees = {"proc": tmp_path / "proc", "sys": tmp_path / "sys"}
    before = host_counts("e0", **trees)
    assert before == HostCounts({"softnet": 10 + 16, "rx_missed_errors": 5}, 2.5, (3.0, 4.0), 9.0, 16.0)
    (statistics / "rx_missed_errors").write_text("12\n")
    busier = f"cpu {9 + 3 * tick} 0 0 {8 * tick} {2 * tick} "
    text = stat.read_text().replace(f"cpu 9 0 0 {8 * tick} {tick} ", busier)
    stat.write_text(text.replace(f" {4 * tick} ", f" {6 * tick} "))
    assert since("e0", before, **trees) == HostLosses(7, 0.0, 2.0, 0.75)
    unread = host_counts("e0", proc=tmp_path / "x", sys=tmp_path / "x")
    assert since("e0", unread, **trees) == HostLosses(0, 0.0)
    (statistics / "rx_missed_errors").write_text("0\n")
    stat.unlink()
    assert since("e0", before, **trees) == HostLosses(0, 0.0)


def test_threads_that_could_not_be_asked_excuse_nothing(tmp_path: Path) -> None:
    """One thread's wait since it began is not the test's. Threads that end are no fault of reading."""
    task = tmp_path / "self/task"
    for thread in ("7", "8", "9"):
        (task / thread).mkdir(parents=True)
    (task / "7/schedstat").write_text("1 2000000000 3\n")
    (task / "8/schedstat").mkdir()  # cannot be read
    before = host_counts("e0", proc=tmp_path, sys=tmp_path)
    assert before.starved_s is None
    (task / "8/schedstat").rmdir()
    assert host_counts("e0", proc=tmp_path, sys=tmp_path).starved_s == 2.0
    assert since("e0", before, proc=tmp_path, sys=tmp_path).starved_s == 0.0


def test_a_wrong_key_gets_nothing() -> None:
    """The receiver closes the connection and goes on waiting for the right one."""
    result = over_loopback(threading.Event(), key="0" * 32)
    assert result.error
    assert result.received is None
    assert result.bps is None


def test_a_transfer_that_is_stopped_ends() -> None:
    """Both ends give up."""
    stop = threading.Event()
    stop.set()
    assert over_loopback(stop).bps is None


def test_a_job_keeps_tests_away(tmp_path: Path) -> None:
    """A live process with the plugin, or a NIC that moves packets, is reported; a file of a dead process is not."""
    host = GpuHost(tmp_path / "host")
    reader = host.reader()
    plugin = tmp_path / "plugin"
    assert job_on(plugin) == ""
    plugin.mkdir()
    (plugin / "2147483646.telemetry").touch()
    (plugin / "notes.txt").touch()
    assert job_on(plugin) == ""
    (plugin / f"{os.getpid()}.telemetry").touch()
    assert str(os.getpid()) in job_on(plugin)
    assert "job" in in_use(reader, "eth0np0", plugin)

    def busy(_: float) -> None:
        host.net("eth0np0", "statistics/rx_bytes", 10**9)

    assert "cannot be read" in traffic_on(reader, "nosuch0", lambda _: None)
    host.net("eth0np0", "statistics/rx_bytes", 0)
    host.net("eth0np0", "statistics/tx_bytes", 0)
    assert traffic_on(reader, "eth0np0", lambda _: None) == ""
    assert "carries" in traffic_on(reader, "eth0np0", busy)


def test_a_job_that_begins_beside_a_test_is_seen(tmp_path: Path) -> None:
    """By its plugin, or by what the NIC carries beyond the test's own bytes, RDMA included; the test's own bytes, their
    headers and what is sent again are none."""
    host = GpuHost(tmp_path / "host")
    plugin, device = tmp_path / "plugin", "eth0np0"
    plugin.mkdir()
    moved = [10**9]

    def carries(tcp: int, rdma: int = 0) -> str:
        for name, value in (("rx_bytes", tcp), ("tx_bytes", 0)):
            host.net(device, f"statistics/{name}", value)
        host.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", str(rdma // 4))
        return watch.found()

    for name in ("rx_bytes", "tx_bytes"):
        host.net(device, f"statistics/{name}", 0)
    watch = JobWatch(host.reader(), device, plugin, lambda: moved[0])
    assert carries(0) == ""
    moved[0] += 10**9
    assert carries(12 * 10**8) == ""
    assert "of others" in carries(14 * 10**8)
    assert "of others" in carries(12 * 10**8, rdma=10**9)
    assert carries(12 * 10**8) == ""
    (plugin / f"{os.getpid()}.telemetry").touch()
    assert str(os.getpid()) in carries(0)
