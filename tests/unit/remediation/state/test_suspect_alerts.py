"""Firing alerts that are not believed before the Alertmanagers were asked."""

from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.remediation.receiver.payload import Alert

POLLED = "rules: [{{alert: FabricNicFlapping, mode: auto}}]\nhold: {{initial_s: 10, jitter: 0}}\nalertmanagers: [{}]\n"


def test_suspect_firing_waits_for_all_alertmanagers():
    """A stale `firing` after `resolved`, from one that was cut off, does not stop the hold; a true one does."""
    world = World(config(POLLED.format("http://a, http://b")))
    world.deliver(alert())
    world.settle()
    assert world.phase() == "avoided"
    world.deliver(alert(firing=False))
    assert world.deliver(alert()) is True
    assert world.state.episodes[alert().fingerprint].status == "resolved"
    world.poll([alert()], [])
    assert world.state.episodes[alert().fingerprint].status == "resolved"
    world.poll([alert()], [alert()])
    assert world.state.episodes[alert().fingerprint].status == "firing"
    assert "episode_refired" in world.events()


def test_a_delivery_of_yesterday_is_believed_by_no_receiver_that_can_ask():
    """It came again when its episode was forgotten, and a NIC that is well was taken out."""
    world = World(config(POLLED.format("http://a")))
    world.poll([])
    world.now += 10
    old = alert(starts_at=world.now - 131)
    assert world.deliver(old) is True
    assert (world.state.episodes, world.pending()) == ({}, [])
    young = alert("h1", starts_at=world.now - 129)
    world.deliver(young)
    assert world.pending() == [], "the two may be of one leaf"
    world.poll([young])
    assert [action.target.host for action in world.pending()] == ["h1"]
    world.settle()
    world.poll([old, young])
    assert [action.target.host for action in world.pending()] == ["h0"], "it does fire"


def test_nothing_is_done_about_a_leaf_of_which_alerts_wait():
    """The receiver's clock is two minutes ahead, and no Alertmanager answers: one NIC's alert has just not waited, and
    it would be taken out before the others count. Nor for longer than they are held back.
    """
    policy = config(POLLED.format("http://a") + "guards: {settle_s: 5}\n")
    world = World(policy, hosts=6)
    world.poll([])
    world.now += 10
    fresh = alert("h0", starts_at=world.now - 120)
    leaf = [alert(f"h{n}", starts_at=world.now - 131) for n in range(1, 6)]
    world.deliver(fresh)
    world.deliver(*leaf)
    for _ in range(10):
        world.tick(1)
        world.poll(None)
        assert world.pending() == []
    world.poll([fresh, *leaf])
    world.tick(10)
    assert world.pending() == []
    assert {t.blocked for t in world.state.targets.values()} == {"shared_cause"}
    # Without an answer for so long that nothing is held back any more.
    alone = World(policy, hosts=6)
    alone.poll([])
    alone.now += 10
    alone.deliver(fresh)
    alone.deliver(*leaf[:1])
    alone.tick(10)
    assert alone.pending() == []
    alone.deliver(fresh)
    alone.tick(alone.config.poll_timeout_s - 20)
    alone.deliver(fresh)
    assert alone.pending() == []
    alone.tick(11)
    assert [action.target.host for action in alone.pending()] == ["h0"]


def test_an_old_alert_is_believed_while_nobody_answers():
    """Whether it is there cannot be known: a true one must not wait for that."""
    world = World(config(POLLED.format("http://a")))
    world.poll([])
    world.tick(200)
    world.poll(None)
    assert world.deliver(alert(starts_at=START - 86_400)) is False
    assert world.state.episodes[alert().fingerprint].status == "firing"


def test_a_delivery_of_yesterday_waits_for_the_first_poll_after_a_start():
    """Nobody had been asked yet: it took a NIC out that was well. Its sender has it again in a moment; who is away for
    ten seconds keeps nothing back."""
    world = World(config(POLLED.format("http://a")))
    observed, old = world.reconciler.observed, alert(starts_at=START - 86_400)

    def waits(*alerts: Alert) -> bool:
        return bool(observed.must_come_again(world.state, alerts, world.now))

    assert waits(alert("h1"), old)
    assert not waits(alert("h1", starts_at=START - 119))
    assert not waits(alert("h1", starts_at=START - 86_400, name="Other")), "no rule asks for it"
    assert not waits(alert("h1", starts_at=START - 86_400, firing=False))
    world.poll(None)
    assert waits(old)
    world.now += 9.9
    assert waits(old)
    world.now += 0.1
    assert not waits(old)
    world.restart()
    world.poll([])
    assert not waits(old)
    assert world.deliver(old) is True


def test_what_is_remembered_does_not_wait_for_the_first_poll():
    """An episode that was under way before the start, and a receiver that has no Alertmanager to ask."""
    world = World(config(POLLED.format("http://a")))
    world.now += 60
    world.deliver(alert(starts_at=START - 86_400))
    world.restart()
    old = alert(starts_at=START - 86_400)
    assert not world.reconciler.observed.must_come_again(world.state, [old], world.now)
    world = World()
    assert not world.reconciler.observed.must_come_again(world.state, [old], world.now)


def test_the_end_of_an_earlier_episode_ends_no_later_one():
    """A flap is resolved and fires again; an Alertmanager of the pair that was cut off tells the first end last."""
    world = World(config("rules: [{alert: FabricNicFlapping, mode: auto}]\nguards: {settle_s: 5}\n"))
    world.deliver(alert(firing=False, starts_at=START - 60, ends_at=START - 30))
    world.deliver(alert(starts_at=START - 20))
    world.deliver(alert(firing=False, starts_at=START - 60, ends_at=START - 30))
    world.tick(6)
    assert [action.action for action in world.pending()] == ["nic.avoid"]
    # Its own end, also as that of an alert which two Prometheus servers have seen begin at different times.
    world.deliver(alert(firing=False, starts_at=START - 25, ends_at=START - 15))
    assert world.state.episodes[alert().fingerprint].status == "resolved"


def test_an_end_counts_where_a_clock_was_wrong():
    """Nothing may keep an alert firing for ever: a start in the future, an end that is not known."""
    for starts_at, ends_at in ((START + 3600, START), (START - 10, 0.0)):
        world = World()
        world.deliver(alert(starts_at=starts_at))
        world.deliver(alert(firing=False, starts_at=START - 20, ends_at=ends_at))
        assert world.state.episodes[alert().fingerprint].status == "resolved"


def test_the_later_of_two_starts_tells_what_is_stale():
    """Two Prometheus servers saw it begin a second apart, and the start that Alertmanager named first comes again after
    its end: it took a NIC out that was well."""
    world = World(config(POLLED.format("http://a")))
    later = alert(starts_at=START + 1)
    world.deliver(later)
    world.deliver(alert())
    world.settle()
    world.deliver(alert(firing=False))
    assert world.deliver(later) is True
    assert world.state.episodes[alert().fingerprint].status == "resolved"


def test_an_answer_that_was_long_on_its_way_begins_no_ended_alert_anew():
    """It was asked for before the end. The alert would fire until it expired, and the NIC wait for a probe."""
    world = World(config(POLLED.format("http://a")))
    world.deliver(alert())
    world.settle()
    world.tick(5)
    world.deliver(alert(firing=False))
    world.now += 1
    world.poll([alert()], took_s=2)
    assert world.state.episodes[alert().fingerprint].status == "resolved"
    world.poll([alert()], took_s=0.5)
    assert world.state.episodes[alert().fingerprint].status == "firing"
