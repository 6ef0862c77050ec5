"""Which packets are believed: keyed, fresh, once."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.mesh._probe_engine import PACKET_SIZE, Gate, encode, nic_identity

KEY, OTHER = bytes(range(16)), bytes(range(16, 32))
OURS = 77  # our epoch


def gate_in_session(epoch=1000):
    """A gate that has accepted train 1 of the peer."""
    gate = Gate([KEY], OURS)
    gate.our_train = 5
    assert gate.take(encode(KEY, epoch, 1, 0, rx_epoch=OURS, rx_train=5)) == "accepted"
    return gate


def test_identity_tells_host_and_device_apart():
    assert nic_identity("h1", "1rail") != nic_identity("h11", "rail")


def test_a_packet_fits_in_128_bytes():
    assert len(encode(KEY, 1, 1, 0)) == PACKET_SIZE <= 128


@given(st.binary(max_size=300))
def test_noise_is_refused(data):
    """Whatever bytes come, of any length up to 300: none passes."""
    assert gate_in_session().take(data) in ("malformed", "wrong_fleet", "bad_mac")


@given(st.integers(0, PACKET_SIZE * 8 - 1), st.integers(2, 1000))
def test_one_flipped_bit_is_refused(bit, train):
    packet = bytearray(encode(KEY, 1000, train, 0))
    packet[bit // 8] ^= 1 << bit % 8
    assert gate_in_session().take(bytes(packet)) != "accepted"


def test_another_fleet_and_rotation():
    """A key that is not in the file is another fleet; two keys may be live at once."""
    assert gate_in_session().take(encode(OTHER, 1000, 2, 0)) == "wrong_fleet"
    both = Gate([OTHER, KEY], OURS)
    both.our_train = 1
    assert both.take(encode(KEY, 1000, 1, 0, OURS, 1)) == "accepted"
    assert both.take(encode(OTHER, 1000, 2, 0, OURS, 1)) == "accepted"


@given(st.lists(st.tuples(st.integers(1, 120), st.integers(0, 2)), max_size=300), st.randoms())
@settings(max_examples=100, deadline=None)
def test_nothing_is_accepted_twice(numbers, rng):
    """Whatever order packets come in and however often, each is accepted once at most."""
    gate = gate_in_session()
    accepted = {(1, 0)}
    for train, position in numbers:
        answer = gate.take(encode(KEY, 1000, train, position))
        assert answer in ("accepted", "replay")
        if answer == "accepted":
            assert (train, position) not in accepted
            accepted.add((train, position))


def test_reordering_within_the_window_is_taken():
    """Paths differ in length: packets that come late by 60 trains are still new."""
    gate = gate_in_session()
    assert gate.take(encode(KEY, 1000, 62, 0)) == "accepted"
    assert gate.take(encode(KEY, 1000, 2, 0)) == "accepted"
    assert gate.take(encode(KEY, 1000, 500, 0)) == "accepted"
    assert gate.take(encode(KEY, 1000, 63, 0)) == "replay"  # too old to decide


def test_a_restarted_peer_must_prove_that_it_hears_us():
    gate = gate_in_session()
    gate.our_train = 20
    assert gate.take(encode(KEY, 2000, 1, 0)) == "unconfirmed"
    assert gate.take(encode(KEY, 2000, 2, 0, rx_epoch=OURS, rx_train=5)) == "unconfirmed"
    assert gate.take(encode(KEY, 2000, 2, 0, rx_epoch=OURS - 1, rx_train=19)) == "unconfirmed"
    assert gate.take(encode(KEY, 2000, 2, 0, rx_epoch=OURS, rx_train=21)) == "unconfirmed"  # not sent yet
    assert gate.take(encode(KEY, 2000, 3, 0, rx_epoch=OURS, rx_train=20)) == "accepted"


def test_a_recording_opens_no_session():
    """All packets of a first conversation, played back after the peer or we have restarted: none is taken."""
    gate = Gate([KEY], OURS)
    recording = []
    for train in range(1, 200):
        gate.our_train = train
        recording += [encode(KEY, 1000, train, p, OURS, max(train - 1, 1)) for p in range(3)]
        for packet in recording[-3:]:
            assert gate.take(packet) == "accepted"
    gate.our_train = 260
    assert gate.take(encode(KEY, 2000, 1, 0, OURS, 259)) == "accepted"  # the peer restarts
    assert {gate.take(packet) for packet in recording} <= {"unconfirmed", "replay"}
    restarted = Gate([KEY], OURS + 1)
    restarted.our_train = 150
    assert {restarted.take(packet) for packet in recording} == {"unconfirmed"}


@pytest.mark.parametrize("seed", [1, 2])
def test_forged_packets_never_get_in(seed):
    """200,000 fuzzed, replayed, re-keyed packets: none is accepted."""
    rng = random.Random(seed)
    gate = gate_in_session()
    genuine = [encode(KEY, 1000, train, p) for train, p in itertools.product(range(2, 60), range(3))]
    assert {gate.take(packet) for packet in genuine} == {"accepted"}
    for _ in range(100_000):
        packet = bytearray(rng.choice(genuine))
        kind = rng.randrange(4)
        if kind == 0:
            packet[rng.randrange(PACKET_SIZE)] ^= rng.randrange(1, 256)
        elif kind == 1:
            packet = bytearray(rng.randbytes(rng.randrange(200)))
        elif kind == 2:
            packet = bytearray(encode(rng.randbytes(16), 1000, rng.randrange(1, 1 << 32), 0))
        assert gate.take(bytes(packet)) != "accepted"
