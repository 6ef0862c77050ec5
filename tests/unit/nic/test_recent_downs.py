"""When links went down lately, by their counts at each scrape."""

from fabricpulse.nic.collectors.flaps import KEPT_S, MOST, RecentDowns


def test_what_was_before_the_first_scrape_has_no_time() -> None:
    """Of a link that went down before the exporter started nobody knows when."""
    recent = RecentDowns()

    assert list(recent.ages("rail0", 7, 100.0)) == []
    assert list(recent.ages("rail0", 7, 115.0)) == []


def test_each_time_has_its_age_the_last_one_first() -> None:
    """Those between two scrapes are as old as the later one."""
    recent = RecentDowns()
    list(recent.ages("rail0", 0, 100.0))
    list(recent.ages("rail1", 0, 100.0))
    list(recent.ages("rail0", 1, 115.0))

    assert list(recent.ages("rail0", 3, 130.0)) == [0.0, 0.0, 15.0]
    assert list(recent.ages("rail1", 0, 130.0)) == []
    assert list(recent.ages("rail0", 3, 145.0)) == [15.0, 15.0, 30.0]


def test_a_count_that_begins_anew_is_no_fall() -> None:
    """A link that was created anew has a lower count."""
    recent = RecentDowns()
    list(recent.ages("rail0", 9, 100.0))

    assert list(recent.ages("rail0", 2, 115.0)) == []
    assert list(recent.ages("rail0", 3, 130.0)) == [0.0]


def test_what_is_kept_has_a_bound_in_number_and_time() -> None:
    """The last twenty, within two hours."""
    recent = RecentDowns()
    list(recent.ages("rail0", 0, 0.0))
    list(recent.ages("rail0", 1, 10.0))

    assert list(recent.ages("rail0", 1, 10.0 + KEPT_S - 1)) == [KEPT_S - 1]
    assert list(recent.ages("rail0", 1, 10.0 + KEPT_S)) == []
    assert len(list(recent.ages("rail0", 1000, 10.0 + KEPT_S))) == MOST
