"""Under attack from somebody without credentials: webhook and kill switch answer, and nothing is done."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from tests.fixtures.remediation_attacks import ATTACKS, OPERATOR, TOKEN, start_with_credentials
from tests.fixtures.remediation_stack import Stack, alert, request, webhook
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


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_webhook_and_kill_switch_answer(receiver, attack):
    """Each on the first try, within the second that an idle machine would be given, and without an effect."""
    with attack(receiver):
        patience, begun = Patience(1), time.monotonic()
        body = webhook(alert("not-there"))
        assert request(f"{receiver.url}/api/v1/alertmanager", body, TOKEN, timeout_s=60)[0] == 200
        order = {"reason": attack.__name__, "owner": "ada"}
        assert request(f"{receiver.url}/api/v1/pause", order, authorization=OPERATOR, timeout_s=60)[0] == 200
        in_time = patience.left()
        assert in_time, f"{time.monotonic() - begun:.1f} s"
    assert receiver.effects() == []


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
