"""What error and congestion counters have grown by lately."""

from fabricpulse.nic.recent_errors import RecentErrors
from fabricpulse.nic.recent_growth import RecentGrowth

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
