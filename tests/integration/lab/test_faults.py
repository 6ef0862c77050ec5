"""Every fault has its effect, only that, and is gone when it is undone. Measured with real datagrams."""

import itertools
import time
from collections.abc import Callable
from socket import SHUT_WR

import pytest
from tests.fixtures.waiting import Patience, wait_for

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab, LabClosedError

from .traffic import Pair

pytestmark = pytest.mark.root

SAME_RAIL = (("h0", "rail0"), ("h1", "rail0"))
CROSS_RAIL = (("h0", "rail0"), ("h1", "rail1"))


def carrier(lab: Lab, host: str, device: str) -> bool:
    """What the host's own /sys says."""
    return lab.run(host, ["cat", f"/sys/class/net/{device}/carrier"]).stdout == "1\n"


def refused_within(lab: Lab, seconds: float) -> bool:
    """True once h0 answers mgmt that nobody listens; while ARP settles there may be no route to it."""
    patience = Patience(seconds)
    while patience.left():
        try:
            lab.connect("mgmt", "h0", 9610, timeout=0.5)
        except ConnectionRefusedError:
            return True
        except OSError:
            continue
    return False


def pair_delay_floor(pair: Pair) -> float:
    """The least of ten delays: a machine that is busy delays some packets, a queue all."""
    with pair:
        return min(pair.delay_s() for _ in range(10))


def pair_over(lab: Lab, spine: str) -> Pair:
    """A pair across rails whose datagrams there go by `spine`."""
    for _ in range(64):
        pair = Pair(lab, *CROSS_RAIL)
        if lab.path("h0-rail0", "h1-rail1", pair.source_port, pair.destination_port) == spine:
            return pair
        pair.__exit__()
    raise AssertionError(f"64 source ports and none goes by {spine}")


def test_a_pulled_cable_takes_the_carrier_and_all_traffic(shared_lab: Lab) -> None:
    """The host sees it at once; the other NIC goes on; after undo traffic is back within 800 ms."""
    nic = shared_lab.host("h0").nic("rail0")
    other = (("h0", "rail1"), ("h1", "rail1"))
    with Pair(shared_lab, *SAME_RAIL) as pair, Pair(shared_lab, *other) as rail1:
        with nic.down() as fault:
            assert fault.event.before_ns <= fault.event.after_ns <= time.time_ns()
            assert not carrier(shared_lab, "h0", "rail0")
            assert carrier(shared_lab, "h1", "rail0")
            assert (pair.there(), pair.back()) == (0, 0)
            assert (rail1.there(), rail1.back()) == (100, 100)
        assert carrier(shared_lab, "h0", "rail0")
        assert pair.until_through() < 0.8
        assert (pair.there(), pair.back()) == (100, 100)


def test_a_nic_set_down_on_the_host_comes_back_with_its_routes(shared_lab: Lab) -> None:
    """`ip link set down` drops routes; undoing it restores them, across rails too."""
    with Pair(shared_lab, *SAME_RAIL) as pair, Pair(shared_lab, *CROSS_RAIL) as across:
        with shared_lab.host("h0").nic("rail0").admin_down():
            assert (pair.there(), across.there()) == (0, 0)
        assert pair.until_through() < 0.8
        assert across.until_through() < 0.8


def test_a_flap_is_as_often_as_asked_and_known_exactly(shared_lab: Lab) -> None:
    """Five flaps: five downs and ups with times, the host's carrier_changes agrees, the link is left up."""

    def changes() -> int:
        return int(shared_lab.run("h1", ["cat", "/sys/class/net/rail1/carrier_changes"]).stdout)

    before = changes()
    flap = shared_lab.host("h1").nic("rail1").flap(rate_hz=20, count=5, seed=3)
    assert flap.wait(60)
    assert [event.up for event in flap.events] == [False, True] * 5
    assert flap.flaps == 5
    times = [event.before_ns for event in flap.events]
    assert times == sorted(times)
    downs = times[::2]
    assert all(0.03e9 < later - earlier < 0.5e9 for earlier, later in itertools.pairwise(downs))
    assert carrier(shared_lab, "h1", "rail1")
    assert changes() - before == 10
    flap.undo()
    assert shared_lab.faults == ()


def test_an_endless_flap_ends_with_undo_and_leaves_the_link_up(shared_lab: Lab) -> None:
    """Undo in the middle of a down phase brings the link back at once."""
    flap = shared_lab.host("h1").nic("rail1").flap(rate_hz=0.1, down_fraction=0.9)
    assert not carrier(shared_lab, "h1", "rail1")
    patience = Patience(1)
    flap.undo()
    assert patience.left(), "undo waited for the end of the phase"
    assert carrier(shared_lab, "h1", "rail1")


def test_loss_is_at_random_and_of_the_wanted_share(shared_lab: Lab) -> None:
    """20 % of 2000 datagrams, within five standard deviations; one way only when asked."""
    with Pair(shared_lab, *SAME_RAIL) as pair:
        with shared_lab.host("h1").nic("rail0").loss(20, way="rx"):
            arrived = pair.there(2000)
            assert 1600 - 90 <= arrived <= 1600 + 90
            assert pair.back() == 100
        assert pair.there() == 100


@pytest.mark.parametrize("way", ["rx", "tx"])
def test_a_one_way_black_hole_leaves_carrier_and_the_other_way(shared_lab: Lab, way: str) -> None:
    """A grey failure: nothing arrives one way, everything the other, no link is down."""
    with Pair(shared_lab, *SAME_RAIL) as pair:
        with shared_lab.host("h0").nic("rail0").black_hole(way):  # type: ignore[arg-type]
            assert (pair.there(), pair.back()) == ((100, 0) if way == "rx" else (0, 100))
            assert carrier(shared_lab, "h0", "rail0")
        assert (pair.there(), pair.back()) == (100, 100)


def test_a_match_hits_only_what_it_says(shared_lab: Lab) -> None:
    """Loss of one UDP port leaves the others alone."""
    with Pair(shared_lab, *SAME_RAIL) as hit, Pair(shared_lab, *SAME_RAIL) as spared:
        with shared_lab.host("h1").nic("rail0").loss(100, "rx", match=f"udp dport {hit.destination_port}"):
            assert (hit.there(), spared.there()) == (0, 100)
        with pytest.raises(UserError, match="nft"):
            shared_lab.host("h1").nic("rail0").loss(100, "rx", match="udp nonsense")
        assert hit.there() == 100


def test_ecn_marks_reach_the_receiver(shared_lab: Lab) -> None:
    """ECN-capable packets arrive marked CE, all or a share; none without the fault."""
    with Pair(shared_lab, *SAME_RAIL) as pair:
        assert pair.marked() == 0
        with shared_lab.host("h1").nic("rail0").ecn_mark():
            assert pair.marked() == 50
        with shared_lab.host("h1").nic("rail0").ecn_mark(50):
            assert 60 <= pair.marked(200) <= 140
        assert pair.marked() == 0


def test_a_limit_slows_one_port_queues_and_then_drops(shared_lab: Lab) -> None:
    """50 Mbit/s with 40 ms of queue: that rate, that delay, loss beyond it; undone, all is fast again."""
    with Pair(shared_lab, *SAME_RAIL) as pair:
        with shared_lab.host("h1").nic("rail0").limit(50, queue_ms=40):
            assert 45 < pair.rate_mbit(0.2) < 55
            assert (
                Pair.one_way(pair.a, pair.b, 200, size=8000) < 100
            )  # 250 kB fit in the queue, 1.6 MB do not
            assert pair.back() == 100
        assert Pair.one_way(pair.a, pair.b, 100, size=8000) == 100


def test_limits_stack_and_the_newest_holds(shared_lab: Lab) -> None:
    """Undone in any order, what remains holds; a NIC's own speed survives heal()."""
    nic = shared_lab.host("h2").nic("rail0")

    def rate() -> str:
        text = shared_lab.run(nic.leaf, ["tc", "qdisc", "show", "dev", "h2"]).stdout
        return text.split(" rate ")[1].split()[0] if " rate " in text else "none"

    first, second = nic.limit(100), nic.limit(10)
    assert rate() == "10Mbit"
    first.undo()
    assert rate() == "10Mbit"
    second.undo()
    assert rate() == "none"


def test_the_speed_of_nics_is_no_fault(make_lab: Callable[..., Lab]) -> None:
    """nic_mbit holds from the start, through a tighter fault and heal()."""
    lab = make_lab(hosts=2, rails=1, nic_mbit=200)
    with Pair(lab, ("h0", "rail0"), ("h1", "rail0")) as pair:
        assert lab.faults == ()
        lab.host("h1").nic(0).limit(20)
        assert 18 < pair.rate_mbit(0.1) < 22
        lab.heal()
        assert 180 < pair.rate_mbit(0.3) < 220


def test_the_source_port_chooses_the_spine(shared_lab: Lab) -> None:
    """Over 200 source ports both spines carry a fair share, and the counters agree with `lab.path`."""

    def sent(spine: str) -> int:
        return int(shared_lab.run("leaf0", ["cat", f"/sys/class/net/{spine}/statistics/tx_packets"]).stdout)

    paths = [shared_lab.path("h0-rail0", "h1-rail1", port, 9620) for port in range(30_000, 30_200)]
    assert {*paths} == {"spine0", "spine1"}
    assert 60 <= paths.count("spine0") <= 140
    for spine in ("spine0", "spine1"):
        with pair_over(shared_lab, spine) as pair:
            before = sent(spine)
            assert pair.there(100) == 100
            assert 100 <= sent(spine) - before <= 110
    assert shared_lab.path("h0-rail0", "h1-rail0", 30_000, 9620) == ""


def test_pods_send_traffic_of_one_rail_over_the_spines(make_lab: Callable[..., Lab]) -> None:
    """With two pods a rail has two leaves, and its NICs meet over the spines."""
    lab = make_lab(hosts=4, rails=1, spines=4, pods=2)
    paths = {lab.path("h0-rail0", "h3-rail0", port, 9620) for port in range(30_000, 30_060)}
    assert paths == {"spine0", "spine1", "spine2", "spine3"}
    assert lab.path("h0-rail0", "h1-rail0", 30_000, 9620) == ""
    with Pair(lab, ("h0", "rail0"), ("h3", "rail0")) as pair:
        assert (pair.there(), pair.back()) == (100, 100)


def test_a_dead_spine_is_left_by_all_a_grey_one_by_nobody(shared_lab: Lab) -> None:
    """Power off: leaves see it and use the other spine. Black hole: what hashes there is lost, the rest is not."""
    with pair_over(shared_lab, "spine0") as over0, pair_over(shared_lab, "spine1") as over1:
        with shared_lab.spine(0).down():
            assert (over0.until_through() < 0.8, over0.there(), over1.there()) == (True, 100, 100)
            assert (
                shared_lab.path("h0-rail0", "h1-rail1", over0.source_port, over0.destination_port) == "spine1"
            )
        assert shared_lab.path("h0-rail0", "h1-rail1", over0.source_port, over0.destination_port) == "spine0"
        assert over0.until_through() < 0.8
        assert (over0.there(), over0.back()) == (100, 100)
        with shared_lab.spine(0).black_hole():
            assert (over0.there(), over1.there()) == (0, 100)
        assert over0.there() == 100


def test_one_congested_path_slows_only_what_crosses_it(shared_lab: Lab) -> None:
    """A limit of one spine's ports shows on that path alone."""
    with (
        pair_over(shared_lab, "spine0") as over0,
        pair_over(shared_lab, "spine1") as over1,
        shared_lab.link("leaf0", "spine0").limit(50, way="out"),
    ):
        assert 45 < over0.rate_mbit(0.2) < 55
        assert over1.rate_mbit(0.2) > 200


def test_a_dead_front_end_leaves_the_rails(shared_lab: Lab) -> None:
    """The whole host is unreachable for mgmt while the job's traffic goes on."""
    with Pair(shared_lab, *SAME_RAIL) as pair:
        with shared_lab.host("h0").front_end_nic.down():
            with pytest.raises(OSError):
                shared_lab.connect("mgmt", "h0", 9610, timeout=0.2)
            assert pair.there() == 100
        assert refused_within(shared_lab, 2)


def test_a_forgotten_mtu_drops_large_frames_only(shared_lab: Lab) -> None:
    """A switch port at 1500 between hosts at 9000: small packets pass, large ones vanish; other hosts are spared."""

    def large(pair: Pair) -> tuple[int, int]:
        return Pair.one_way(pair.a, pair.b, 20, size=8000), Pair.one_way(pair.b, pair.a, 20, size=8000)

    other = (("h2", "rail0"), ("h3", "rail1"))
    with Pair(shared_lab, *CROSS_RAIL) as pair, Pair(shared_lab, *other) as spared:
        assert large(pair) == (20, 20)
        with shared_lab.host("h0").nic("rail0").mtu(1500):
            assert pair.there() == 100
            assert large(pair)[0] == 0
            assert large(spared) == (20, 20)
        assert large(pair) == (20, 20)
    with pytest.raises(UserError, match="no fault"):
        shared_lab.host("h0").nic("rail0").mtu(9001)


def test_a_host_without_power_is_gone_from_every_network(lab: Lab) -> None:
    """Processes killed, no NIC of it answers; powered again, its NICs do."""
    process = lab.popen("h1", ["sleep", "1000"])
    with Pair(lab, *SAME_RAIL) as pair, Pair(lab, ("h0", "rail1"), ("h1", "rail1")) as rail1:
        with lab.host("h1").power_off():
            assert process.poll() == -9
            assert (pair.there(), rail1.there()) == (0, 0)
            assert [carrier(lab, "h1", device) for device in ("rail0", "rail1", "fe0")] == [False] * 3
        assert pair.until_through() < 0.8
        assert rail1.until_through() < 0.8


def test_a_frozen_host_stands_still_and_goes_on(shared_lab: Lab) -> None:
    """Its programs say nothing while frozen, its kernel still answers, and afterwards they go on."""
    ticker = shared_lab.popen("h0", ["sh", "-c", "while :; do echo tick; sleep 0.01; done"], name="ticker")
    with ticker:
        ticker.wait_for_output("tick")
        with shared_lab.host("h0").freeze(), Pair(shared_lab, *SAME_RAIL) as pair:
            before = ticker.output()
            assert pair.there() == 100
            assert ticker.output() == before
        wait_for(lambda: ticker.output() != before, 5, "the process to go on")


def test_ipv6_comes_back_after_every_kind_of_outage(shared_lab: Lab) -> None:
    """Addresses and routes of IPv6 survive a pulled cable, a NIC set down on the host, and a dead spine."""
    h0 = shared_lab.host("h0")
    with Pair(shared_lab, *CROSS_RAIL, version=6) as pair:
        for fault in (
            h0.nic(0).down,
            h0.nic(0).admin_down,
            shared_lab.spine(0).down,
            shared_lab.spine(1).down,
        ):
            broken = fault()
            pair.there(5)
            broken.undo()
            # Neighbour discovery asks for 3 s before it gives up, and each hop may have to.
            pair.until_through(30)
            assert (pair.there(), pair.back()) == (100, 100), broken
        for spine in shared_lab.spines:
            with spine.down():
                pair.until_through(30)


def test_heal_undoes_everything(shared_lab: Lab) -> None:
    """Whatever is in force, in whatever order it came."""
    h0 = shared_lab.host("h0")
    h0.nic(0).down()
    h0.nic(1).flap(30)
    shared_lab.spine(1).down()
    shared_lab.host("h1").nic(0).loss(100)
    shared_lab.host("h1").nic(1).limit(1, way="both")
    assert len(shared_lab.faults) >= 5
    shared_lab.heal()
    assert shared_lab.faults == ()
    with Pair(shared_lab, *SAME_RAIL) as pair, Pair(shared_lab, *CROSS_RAIL) as across:
        assert pair.until_through() < 0.8
        assert across.until_through() < 0.8
        assert (pair.there(), across.there(), across.back()) == (100, 100, 100)


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_an_impossible_loss_is_refused(shared_lab: Lab, percent: float) -> None:
    """One sentence, nothing changed."""
    with pytest.raises(UserError, match="not possible"):
        shared_lab.host("h0").nic(0).loss(percent)
    assert shared_lab.faults == ()


def test_faults_of_a_closed_lab_are_harmless(lab: Lab) -> None:
    """A with-block that outlives the lab ends without an error; a new fault is refused."""
    with lab.host("h0").nic(0).down(), lab.host("h1").nic(0).loss(5):
        lab.close()
    with pytest.raises(LabClosedError):
        lab.host("h0").nic(0).down()


def test_a_load_fills_the_path_that_was_asked_for(shared_lab: Lab) -> None:
    """80 Mbit/s by spine1: its counter grows, spine0's does not; over a limit it makes a standing queue for others."""

    def sent_bytes(spine: str) -> int:
        return int(shared_lab.run("leaf0", ["cat", f"/sys/class/net/{spine}/statistics/tx_bytes"]).stdout)

    with shared_lab.load("h0-rail0", "h1-rail1", 80, path="spine1", flows=2) as load:
        assert len(load.source_ports) == 2
        at_first = sent_bytes("spine1")
        wait_for(lambda: sent_bytes("spine1") > at_first, 5, "the load's first packets")
        started, before = time.monotonic(), [sent_bytes("spine0"), sent_bytes("spine1")]
        time.sleep(1)  # the second over which the rate is taken
        after, took = [sent_bytes("spine0"), sent_bytes("spine1")], time.monotonic() - started
        assert after[0] - before[0] < 10_000
        # Of 80 Mbit/s what a busy machine sends, on this spine all the same.
        assert after[1] - before[1] > 1_000_000
        assert (after[1] - before[1]) * 8e-6 / took < 90
        with pair_over(shared_lab, "spine1") as pair, shared_lab.link("leaf0", "spine1").limit(20, way="out"):
            # 50 kB at 20 Mbit/s are 20 ms.
            delay = wait_for(lambda: (found := pair.delay_s()) >= 0.01 and found, 5, "the queue to fill")
            assert delay < 0.5
            assert pair_delay_floor(pair_over(shared_lab, "spine0")) < 0.01
    assert load.process.poll() is not None
    with pytest.raises(UserError, match="share a leaf"):
        shared_lab.load("h0-rail0", "h1-rail0", 1, path="spine0")
    assert shared_lab.faults == ()


def connect_floor(lab: Lab) -> float:
    """The least time of ten TCP handshakes across rails, s: a machine that is busy delays some, a longer way all."""
    times = []
    with lab.socket("h1") as listener:
        listener.bind((lab.address("h1", "rail1"), 0))
        listener.listen()
        for _ in range(10):
            with lab.socket("h0") as sock:
                sock.bind((lab.address("h0", "rail0"), 0))
                began = time.monotonic()
                sock.connect(listener.getsockname())
                times.append(time.monotonic() - began)
    return min(times)


def test_a_detour_is_longer_for_tcp_one_way_and_for_nothing_else(shared_lab: Lab) -> None:
    """A handshake takes the delay once, datagrams take none, large segments arrive; all is as before after undo."""
    with shared_lab.detour("h0-rail0", "h1-rail1", 30.0) as fault:
        assert shared_lab.faults == (fault,)
        assert 0.03 <= connect_floor(shared_lab) < 0.06
        assert pair_delay_floor(Pair(shared_lab, *CROSS_RAIL)) < 0.015
        with shared_lab.socket("h1") as listener, shared_lab.socket("h0") as sock:
            listener.bind((shared_lab.address("h1", "rail1"), 0))
            listener.listen()
            sock.bind((shared_lab.address("h0", "rail0"), 0))
            sock.connect(listener.getsockname())
            sock.sendall(bytes(50_000))  # fits into the receiver's buffer: nobody reads yet
            sock.shutdown(SHUT_WR)
            answer, _ = listener.accept()
            with answer:
                assert sum(len(data) for data in iter(lambda: answer.recv(1 << 16), b"")) == 50_000
    assert connect_floor(shared_lab) < 0.015
    assert "detour" not in shared_lab.run("leaf0", ["ip", "link"]).stdout
    assert "detour" not in shared_lab.run("leaf0", ["ip", "rule"]).stdout


def test_a_port_that_delays_does_so_to_datagrams_that_leave_by_it(shared_lab: Lab) -> None:
    """Large ones too, in order, and none is lost; the other way nothing is later, and nothing after undo. Twice."""
    port = shared_lab.host("h0").nic("rail0").switch_port
    there, back = (("h1", "rail0"), ("h0", "rail0")), (("h0", "rail0"), ("h1", "rail0"))
    for _ in range(2):
        with port.delay(40.0) as fault:
            assert shared_lab.faults == (fault,)
            assert 0.04 <= pair_delay_floor(Pair(shared_lab, *there)) < 0.08
            assert pair_delay_floor(Pair(shared_lab, *back)) < 0.02
            with Pair(shared_lab, *there) as pair:
                sent = [bytes([number]) * (8000 if number % 2 else 60) for number in range(20)]
                for data in sent:
                    pair.a.send(data)
                pair.b.settimeout(5)
                assert [pair.b.recv(9000) for _ in sent] == sent
        assert pair_delay_floor(Pair(shared_lab, *there)) < 0.02
    assert "delay" not in shared_lab.run(port.node, ["ip", "link"]).stdout
    with pytest.raises(UserError, match="above 0"):
        port.delay(0)


def test_a_detour_that_cannot_be_is_refused(shared_lab: Lab) -> None:
    """Where no leaf routes, and without a delay."""
    with pytest.raises(UserError, match="share a leaf"):
        shared_lab.detour("h0-rail0", "h1-rail0", 5.0)
    with pytest.raises(UserError, match="above 0"):
        shared_lab.detour("h0-rail0", "h1-rail1", 0.0)


def test_an_uplink_has_a_speed_of_its_own(make_lab: Callable[..., Lab]) -> None:
    """uplink_mbit holds back what crosses a spine and nothing else, and is no fault."""
    lab = make_lab(hosts=2, rails=2, spines=1, uplink_mbit=20)
    assert lab.faults == ()
    lab.heal()
    with Pair(lab, *CROSS_RAIL) as across, Pair(lab, *SAME_RAIL) as below:
        assert 18 < across.rate_mbit(0.1) < 22
        assert below.rate_mbit(0.1) > 40
