"""The schema of the control protocol: what it takes, what it refuses, and that the examples in its text are of it."""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from tests.fixtures.plugin.control_schema import PATH, SCHEMA, check_answer, check_request


def examples() -> list[dict[str, Any]]:
    """The messages in docs/control-protocol.md."""
    found = []
    decoder = json.JSONDecoder()
    for block in re.findall(
        r"```json\n(.*?)```", PATH.with_suffix("").with_suffix(".md").read_text(), re.DOTALL
    ):
        at = 0
        while block[at:].strip():
            at += len(block[at:]) - len(block[at:].lstrip())
            message, at = decoder.raw_decode(block, at)
            found.append(message)
    return found


def test_it_is_a_schema() -> None:
    """The published schema of the control protocol is one itself."""
    Draft202012Validator.check_schema(SCHEMA)


def test_the_examples_are_of_the_schema() -> None:
    messages = examples()
    asked = [message for message in messages if "op" in message]
    assert len(asked) >= 5
    assert len(messages) - len(asked) >= 6
    for message in messages:
        (check_request if "op" in message else check_answer)(message)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"op": 7},
        {"op": "fly"},
        {"op": "status", "limit": 0},
        {"op": "status", "after": "zz"},
        {"op": "events", "since": -1},
        {"op": "nic.avoid", "op_id": "1", "device": "rail0"},
        {"op": "nic.avoid", "op_id": "", "generation": 1, "device": "rail0"},
        {"op": "detail", "op_id": "1", "generation": 1, "level": 3},
        {"op": "lane.weight", "op_id": "1", "generation": 1, "connection": "0" * 16, "lane": 0},
        {
            "op": "lane.repath",
            "op_id": "1",
            "generation": 1,
            "connection": "0" * 16,
            "lane": 0,
            "entropy": 80,
        },
    ],
)
def test_what_the_plugin_refuses_is_no_request(message: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        check_request(message)


@pytest.mark.parametrize(
    "name", ["answer_hello", "answer_status", "answer_events", "answer_change", "answer_error"]
)
def test_an_answer_with_a_field_more_or_less_is_none(name: str) -> None:
    def fits(message: dict[str, Any]) -> bool:
        return not list(
            Draft202012Validator({"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{name}"}).iter_errors(message)
        )

    example = next(message for message in examples() if fits(message))
    assert not fits({**example, "more": 1})
    for field in SCHEMA["$defs"][name]["required"]:
        assert not fits({key: value for key, value in example.items() if key != field})
