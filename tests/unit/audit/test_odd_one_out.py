"""Odd one out: properties that hold for every fleet."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.audit.compare.odd_one_out import (
    LEAST,
    Comparison,
    Missing,
    against,
    compare,
    usual_values,
)
from fabricpulse.audit.model import Value

FLEETS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.sampled_from(["x", "y", "z"]).map(lambda text: (Value("mtu", "rail0", "eth0", text),)),
    max_size=12,
)


@given(FLEETS)
def test_odd_is_who_differs_from_more_than_half(fleet: dict[str, tuple[Value, ...]]) -> None:
    """With a majority exactly those with another value are odd; without one nobody is, and the group is divided."""
    counts = Counter(values[0].value for values in fleet.values())
    found = compare(fleet)
    majority = [value for value, count in counts.items() if 2 * count > len(fleet)]

    if len(fleet) < LEAST or len(counts) < 2:
        assert found == Comparison((), ())
    elif majority:
        assert {odd.host for odd in found.odd} == {h for h, v in fleet.items() if v[0].value != majority[0]}
        assert all(odd.usual == majority[0] and odd.have == counts[majority[0]] for odd in found.odd)
        assert found.divided == ()
    else:
        assert found.odd == ()
        [divided] = found.divided
        assert {host for who in divided.values.values() for host, _ in who} == set(fleet)


@given(FLEETS)
def test_order_of_hosts_does_not_matter(fleet: dict[str, tuple[Value, ...]]) -> None:
    """The same values give the same result in whatever order hosts have answered."""
    assert compare(dict(reversed(fleet.items()))) == compare(fleet)


@given(FLEETS)
def test_learned_values_blame_exactly_the_odd(fleet: dict[str, tuple[Value, ...]]) -> None:
    """A profile that was learned from a fleet finds in the same fleet what the comparison finds."""
    found = against(fleet, usual_values(fleet))
    if len(fleet) >= LEAST:
        assert {host for host, *_ in found} == {odd.host for odd in compare(fleet).odd}


def test_roles_and_attributes_are_compared_apart() -> None:
    """A value is odd among its like only: two rails with different MTUs are both right."""
    fleet = {
        f"h{n}": (Value("mtu", "rail0", "eth0", "9000"), Value("mtu", "rail1", "eth1", "1500"))
        for n in range(5)
    }
    assert compare(fleet) == Comparison((), ())


def test_a_value_that_a_host_does_not_tell_is_not_odd() -> None:
    """A host without the value is left out of the group, and listed where more than half of its like have it; so is
    one that reports nothing, and a NIC without what those of its network have."""
    bios, kernel = Value("bios", "host", "", "1"), Value("kernel", "host", "", "6")
    fleet = {f"h{n}": (bios, kernel) for n in range(3)} | {"h8": (kernel,), "h9": ()}
    found = compare(fleet)
    assert (found.odd, found.missing) == ((), (Missing("h8", "", ("bios",)), Missing("h9", "", ())))
    assert compare({"h0": (bios, kernel), "h1": (kernel,)}).missing == ()
    assert compare({"h0": (bios, kernel)} | {f"h{n}": (kernel,) for n in range(1, 4)}).missing == ()
    assert compare(dict.fromkeys(("h0", "h1", "h2"), ())).missing == ()
    speed, mtu = Value("speed", "host: rail0", "eth0", "4"), Value("mtu", "host: rail0", "eth0", "9")
    nics = {f"h{n}": (speed, mtu) for n in range(3)} | {"h3": (mtu,)}
    assert compare(nics).missing == (Missing("h3", "eth0", ("speed",)),)


def test_profile_allows_lists_and_any_role() -> None:
    """A list allows each of its values; "*" is for roles without an entry of their own."""
    fleet = {"a": (Value("mtu", "rail0", "eth0", "9216"),), "b": (Value("mtu", "rail1", "eth1", "1500"),)}
    wanted: dict[str, dict[str, str | list[str]]] = {"*": {"mtu": ["9000", "9216"]}, "rail1": {"mtu": "9000"}}
    assert [(host, want) for host, _, want in against(fleet, wanted)] == [("b", "9000")]
