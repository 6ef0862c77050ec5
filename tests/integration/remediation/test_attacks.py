"""Under attack from strangers, and from somebody with a token: webhook and kill switch answer, and nothing is done."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from tests.fixtures.remediation.attacks import (
    ATTACKS,
    OPERATOR,
    TOKEN,
    Attack,
    chunked_bodies,
    idle_bodies,
    idle_claims,
    start_with_credentials,
)
from tests.fixtures.remediation.insiders import INSIDE_ATTACKS, many_agents, others_rights
from tests.fixtures.remediation.stack import Stack, alert, request, webhook
from tests.fixtures.waiting import Patience


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A receiver that asks for credentials; an agent and a job that could be harmed."""
    stack = Stack(tmp_path_factory.mktemp("attacked"))
    try:
        start_with_credentials(stack)
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="module")
def open_receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One that asks for nothing, as it is by default."""
    stack = Stack(tmp_path_factory.mktemp("open"))
    try:
        stack.start_all()
        yield stack
    finally:
        stack.close()


def answers_in_time(stack: Stack, attack: Attack, token: str, authorization: str) -> None:
    with attack(stack):
        patience, begun = Patience(1), time.monotonic()
        body = webhook(alert("not-there"))
        assert request(f"{stack.url}/api/v1/alertmanager", body, token, timeout_s=60)[0] == 200
        order = {"reason": attack.__name__, "owner": "ada"}
        answer = request(f"{stack.url}/api/v1/pause", order, authorization=authorization, timeout_s=60)
        assert answer[0] == 200
        in_time = patience.left()
        assert in_time, f"{time.monotonic() - begun:.1f} s"
    assert stack.effects() == []


@pytest.mark.parametrize("attack", [*ATTACKS, *INSIDE_ATTACKS], ids=lambda attack: attack.__name__)
def test_webhook_and_kill_switch_answer(receiver, attack):
    """Each on the first try, within the second that an idle machine would be given, and without an effect."""
    answers_in_time(receiver, attack, TOKEN, OPERATOR)


@pytest.mark.parametrize(
    "attack",
    [idle_claims, idle_bodies, chunked_bodies, many_agents, others_rights],
    ids=lambda attack: attack.__name__,
)
def test_they_answer_where_no_credentials_are_asked_for(open_receiver, attack):
    """The same."""
    answers_in_time(open_receiver, attack, "", "")


def test_a_page_of_another_origin_and_a_simple_form_are_refused(receiver):
    """What a browser sends without asking first: 403, whatever credentials it adds."""
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json", "Origin": "http://evil"},
    ):
        asked = urllib.request.Request(  # noqa: S310 - loopback
            f"{receiver.url}/api/v1/pause",
            data=b'{"reason": "x"}',
            headers=headers | {"Authorization": OPERATOR},
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(asked, timeout=60)  # noqa: S310
        assert caught.value.code == 403
        caught.value.close()
