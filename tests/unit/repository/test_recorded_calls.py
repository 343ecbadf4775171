"""What the pages of the API show is what the .proto files say today, and of no machine."""

import re

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from muster.client.error_reasons import REASONS
from scripts.api import wire_json
from scripts.api.calls_page import recorded
from scripts.reference_rpcs import services

METHODS = {f"{service.name}/{call[0]}" for service in services() for call in service.calls}


def test_each_call_is_recorded() -> None:
    assert set(recorded()["calls"]) == METHODS


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_was_recorded_is_what_the_messages_are_today(name: str) -> None:
    method = wire_json.method(name)
    kinds = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    for exchange in recorded()["calls"][name]:
        asked = exchange["request"]
        for message in asked if isinstance(asked, list) else [asked]:
            json_format.ParseDict(message, kinds[0]())  # refuses a field that there is not
        for message in exchange.get("answers", [exchange["answer"]] if "answer" in exchange else []):
            json_format.ParseDict(message, kinds[1]())


def test_each_recorded_error_is_in_the_table() -> None:
    known = {(row.code, row.reason) for row in REASONS}
    found = [one["error"] for each in recorded()["calls"].values() for one in each if "error" in one]
    assert found and {(error["status"], error["reason"]) for error in found} <= known


def test_nothing_of_the_machine_that_recorded_them_is_shown() -> None:
    assert not re.search(r"/(tmp|home|work|root)/|site-packages", str(recorded()))
