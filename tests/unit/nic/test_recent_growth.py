"""What error and congestion counters have grown by lately."""

from fabricpulse.nic.recent_errors import RecentErrors
from fabricpulse.nic.recent_growth import RecentGrowth
from fabricpulse.nic.recent_traffic import RecentTraffic

DROPS: tuple[str, ...] = ("rail0", "drops")


def growth_of(values: list[tuple[float, float]]) -> RecentGrowth:
    """After scrapes at these times with these values."""
    growth = RecentGrowth()
    for time, value in values:
        growth.take(time, {DROPS: value})
    return growth


def test_nothing_is_exposed_of_a_counter_that_stands_still() -> None:
    """Whatever it had counted before."""
    assert growth_of([(time, 7000.0) for time in range(0, 300, 15)]).recent() == {}
    assert RecentGrowth().recent() == {}


def test_growth_is_exact_whatever_the_scrape_interval() -> None:
    """Ten a second, seen each 15 s or each minute. What was before the first scrape counts as none."""
    for interval in (15, 60):
        found = growth_of([(time, 10.0 * time) for time in range(0, 1801, interval)]).recent()[DROPS]
        assert found.rate == 10
        assert found.increase == 9000
    found = growth_of([(0, 0), (15, 150), (30, 300)]).recent()[DROPS]
    assert (found.rate, found.increase) == (300 / 120, 300)


def test_growth_is_exposed_as_zero_before_its_series_ends() -> None:
    """One event at 15 s: a rate for two minutes, an increase for fifteen, then zeros, then nothing."""

    def at(end: int) -> tuple[float, float] | None:
        found = growth_of([(time, float(time >= 15)) for time in range(0, end + 1, 15)]).recent().get(DROPS)
        return (found.increase, found.rate) if found else None

    assert at(120) == (1, 1 / 120)
    assert at(135) == (1, 0)
    assert at(900) == (1, 0)
    assert at(915) == (0, 0)
    assert at(1215) == (0, 0)
    assert at(1230) is None


def test_counter_that_begins_again_has_grown_by_what_it_counts_now() -> None:
    """As PromQL takes it, too."""
    assert growth_of([(0, 100.0), (15, 103.0), (30, 2.0)]).recent()[DROPS].increase == 5


def test_two_scrapers_change_nothing() -> None:
    """A second one with a phase of its own, and one that asks all the time."""
    found = growth_of([(time / 10, float(time)) for time in range(6000)])
    assert found.recent()[DROPS].rate == 10
    assert len(found._scrapes) <= 1200 / 5 + 2


def test_counter_that_is_away_is_not_exposed_meanwhile() -> None:
    """A device that hangs keeps its past for as long as that could be exposed; one that is gone leaves nothing."""
    growth = growth_of([(0, 0.0), (15, 5.0)])
    growth.take(30, {})
    assert growth.recent() == {}
    growth.take(45, {DROPS: 9.0})
    assert growth.recent()[DROPS].increase == 9
    growth.take(1300, {})
    growth.take(1315, {DROPS: 20.0})
    assert growth.recent() == {}


def scraped(count: int, marked: int) -> dict[str, list[str]]:
    """Lines of a scrape."""
    port = 'device="rail0",rdma_device="mlx5_0",port="1"'
    return {
        "fabricpulse_nic_priority_discards_total": [
            f'fabricpulse_nic_priority_discards_total{{device="rail0",priority="3"}} {count}\n',
            'fabricpulse_nic_priority_discards_total{device="rail0",priority="4"} 5\n',
        ],
        "fabricpulse_nic_received_packets_total": [
            f"fabricpulse_nic_received_packets_total{{{port}}} {1000 * marked}\n"
        ],
        "fabricpulse_nic_ecn_marked_packets_received_total": [
            f"fabricpulse_nic_ecn_marked_packets_received_total{{{port}}} {marked if count else 0}\n"
        ],
        "fabricpulse_nic_link_mtu_bytes": ['fabricpulse_nic_link_mtu_bytes{device="rail0"} 9000\n'],
    }


def test_lines_have_the_labels_of_the_counter() -> None:
    """And a counter that always grows is exposed only beside the one that it is the whole of."""
    errors = RecentErrors()
    errors.take(0, scraped(0, 0))
    errors.take(60, scraped(0, 60))
    assert list(errors.lines()) == []
    errors.take(120, scraped(60, 120))
    text = "".join(line for _, line in errors.lines())
    link = 'device="rail0",rdma_device="",port="",priority="3",kind="",counter="priority_discards"'
    port = 'device="rail0",rdma_device="mlx5_0",port="1",priority="",kind=""'
    assert text.splitlines() == [
        f"fabricpulse_nic_recent_increase{{{link}}} 60",
        f"fabricpulse_nic_recent_rate{{{link}}} 0.5",
        f'fabricpulse_nic_recent_increase{{{port},counter="ecn_marked_packets_received"}} 120',
        f'fabricpulse_nic_recent_rate{{{port},counter="ecn_marked_packets_received"}} 1',
        f'fabricpulse_nic_recent_rate{{{port},counter="received_packets"}} 1000',
    ]


def moved(link: float, rdma: float) -> dict[str, list[str]]:
    """The counters of rail0, a port of which RDMA uses, and of rail1, which stands still."""
    port = 'device="rail0",rdma_device="mlx5_0",port="1"'
    return {
        "fabricpulse_nic_link_received_bytes_total": [
            f'fabricpulse_nic_link_received_bytes_total{{device="rail0"}} {link:g}\n',
            'fabricpulse_nic_link_received_bytes_total{device="rail1"} 70\n',
        ],
        "fabricpulse_nic_link_transmitted_bytes_total": [
            f'fabricpulse_nic_link_transmitted_bytes_total{{device="rail0"}} {2 * link:g}\n'
        ],
        "fabricpulse_nic_received_bytes_total": [
            f"fabricpulse_nic_received_bytes_total{{{port}}} {rdma:g}\n"
        ],
        "fabricpulse_nic_transmitted_bytes_total": [
            f"fabricpulse_nic_transmitted_bytes_total{{{port}}} {3 * rdma:g}\n"
        ],
    }


def test_traffic_is_that_of_the_link_and_of_rdma_in_both_directions() -> None:
    """Over two minutes, or since the first scrape; 0 of a NIC that moves nothing, nothing of one that is gone."""
    traffic = RecentTraffic()

    def reported() -> dict[str, float]:
        lines = [line.split() for _, line in traffic.lines()]
        return {name.split('"')[1]: float(value) for name, value in lines}

    traffic.take(0, moved(0, 0))
    assert reported() == {}  # a rate takes two scrapes
    traffic.take(10, moved(100, 1000))
    assert reported() == {"rail0": 30 + 400, "rail1": 0}
    for now in range(20, 140, 10):
        traffic.take(now, moved(100, 1000))
    assert reported() == {"rail0": 0, "rail1": 0}  # what was two minutes ago is over
    traffic.take(140, {name: lines[:1] for name, lines in moved(220, 1000).items()})
    assert reported() == {"rail0": 3}
