"""The bytes that clients in other languages are tested with are the bytes of this implementation."""

import msgpack
import msgspec
import pytest

from npc_runtime.protocol import BadMessage, decode_answer, decode_request, encode
from npc_runtime.protocol.messages import ANSWERS, REQUESTS
from tests.support import vectors

MAX_BYTES = 262_144


def fields(message):
    """The message as JSON gives it."""
    return msgspec.json.decode(msgspec.json.encode(message))


@pytest.mark.parametrize("vector", vectors.load("requests"), ids=vectors.names)
def test_a_request_keeps_its_bytes_from_the_wire_to_the_wire(vector):
    request = decode_request(bytes.fromhex(vector["hex"]), MAX_BYTES)
    assert fields(request) == vector["fields"]
    assert type(request) is REQUESTS[vector["type"]]
    assert encode(request).hex() == vector["hex"]


@pytest.mark.parametrize("vector", vectors.load("answers"), ids=vectors.names)
def test_an_answer_keeps_its_bytes_from_the_wire_to_the_wire(vector):
    answer = decode_answer(bytes.fromhex(vector["hex"]))
    assert fields(answer) == vector["fields"]
    assert type(answer) is ANSWERS[vector["type"]]
    assert encode(answer).hex() == vector["hex"]


@pytest.mark.parametrize("vector", vectors.load("requests") + vectors.load("answers"), ids=vectors.names)
def test_the_written_fields_alone_give_the_bytes(vector):
    assert msgpack.packb(vector["fields"]).hex() == vector["hex"]


@pytest.mark.parametrize("vector", vectors.load("accepted"), ids=vectors.names)
def test_what_other_libraries_write_is_understood(vector):
    assert fields(decode_request(bytes.fromhex(vector["hex"]), MAX_BYTES)) == vector["fields"]


@pytest.mark.parametrize("vector", vectors.load("malformed"), ids=vectors.names)
def test_a_malformed_message_has_its_one_typed_error(vector):
    with pytest.raises(BadMessage) as caught:
        decode_request(bytes.fromhex(vector["hex"]), MAX_BYTES)
    assert (caught.value.error.code, caught.value.reply_to) == (vector["code"], vector["reply_to"])


@pytest.mark.parametrize(("file", "known"), [("requests", REQUESTS), ("answers", ANSWERS)])
def test_every_message_has_a_vector(file, known):
    assert {vector["type"] for vector in vectors.load(file)} == set(known)


@pytest.mark.parametrize("file", ["requests", "answers", "accepted", "malformed"])
def test_vectors_are_sorted_by_name_and_each_name_is_used_once(file):
    names = [vector["name"] for vector in vectors.load(file)]
    assert names == sorted(set(names))


@pytest.mark.parametrize("file", ["requests", "answers", "accepted"])
def test_integers_in_vectors_are_exact_in_every_json_reader(file):
    def integers(value):
        if isinstance(value, dict):
            return [found for item in value.values() for found in integers(item)]
        if isinstance(value, list):
            return [found for item in value for found in integers(item)]
        return [value] if isinstance(value, int) else []

    assert all(abs(number) < 2**53 for number in integers(vectors.load(file)))
