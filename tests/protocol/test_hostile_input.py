"""Whatever bytes arrive: one typed error, or a message; nothing else comes out of the codec."""

import random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npc_runtime.errors import MalformedMessage, NpcError
from npc_runtime.protocol import BadMessage, decode_answer, decode_request, encode, error_answer
from npc_runtime.protocol.messages import REQUESTS, Error, Request
from tests.support import vectors

MAX_BYTES = 262_144

REQUEST_VECTORS = vectors.load("requests")


def refusal(data: bytes, max_bytes: int = MAX_BYTES) -> BadMessage | None:
    """The one error of ``data``; None where it is a message. Any other exception fails the test."""
    try:
        request = decode_request(data, max_bytes)
    except BadMessage as bad:
        assert isinstance(bad.error, NpcError)
        assert bad.error.fault == "request"
        # The daemon must be able to say so, and briefly: the text does not give the input back in full.
        answer = decode_answer(encode(error_answer(bad.error, bad.reply_to)))
        assert isinstance(answer, Error)
        assert answer.reply_to == bad.reply_to
        assert len(answer.message) < 1000
        assert "Traceback" not in answer.message
        return bad
    assert isinstance(request, Request)
    return None


def packed(**fields) -> bytes:
    return bytes(msgpack.packb(fields))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\xc0",
        b"\xc1",
        b"\x07",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
        b"\x91" * 1200,
        b"\x91" * 500 + b"\x01",
        b"\x81\xa1x" * 1200,
        b"\x81" * 1200,
        b"\x81\x90\x01",
        b"\xa2\xc3\x28",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
        packed(type="ping", id=1) + packed(type="ping", id=2),
        packed(id=1),
        packed(type=None, id=1),
        packed(type=7, id=1),
        packed(type=["ping"], id=1),
        packed(type={"ping": 1}, id=1),
        packed(type="x" * 100_000, id=1),
        packed(type="ping", id={"deep": 1}),
        packed(type="ping", id=[1]),
        packed(type="ping", id=None),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_the_known_hostile_messages_are_refused_with_one_error(data):
    assert refusal(data) is not None


def test_a_message_over_the_limit_is_refused_before_it_is_read():
    bad = refusal(b"\xc1" * 101, max_bytes=100)
    assert bad is not None
    assert bad.error.code == "too_large"
    assert "101" in bad.error.message
    assert "100" in bad.error.message
    at_limit = packed(type="hello", id=1, protocol=1, client="x" * 60)
    assert refusal(at_limit, max_bytes=len(at_limit)) is None


@pytest.mark.parametrize("vector", REQUEST_VECTORS, ids=vectors.names)
def test_a_message_cut_off_anywhere_is_refused(vector):
    whole = bytes.fromhex(vector["hex"])
    for length in range(len(whole)):
        bad = refusal(whole[:length])
        assert bad is not None
        assert bad.error.code == MalformedMessage.code


@pytest.mark.parametrize("vector", REQUEST_VECTORS, ids=vectors.names)
def test_a_message_with_one_byte_changed_is_a_message_or_refused(vector):
    whole = bytes.fromhex(vector["hex"])
    for at in range(min(len(whole), 160)):
        for byte in (0x00, 0x7F, 0x80, 0x90, 0xC1, 0xC4, 0xD4, 0xDF, 0xFF, whole[at] ^ 1):
            refusal(whole[:at] + bytes([byte]) + whole[at + 1 :])


def test_ten_thousand_packets_of_noise_are_refused():
    noise = random.Random(4242)
    for _ in range(10_000):
        assert refusal(noise.randbytes(noise.randrange(64))) is not None


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    # A map that is a request by chance does not happen in this many tries.
    assert refusal(data) is not None


_plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
_value = st.recursive(
    _plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers() | st.binary(), inner),
    max_leaves=20,
)


def _pack(fields) -> bytes:
    return bytes(msgpack.packb(fields, unicode_errors="surrogatepass", default=repr))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(REQUEST_VECTORS),
    st.dictionaries(
        st.sampled_from(
            ["type", "id", "text", "adapters", "sampling", "scales", "persona", "session_id", "yaml", "turn_id", "keep"]
        ),
        _value,
        max_size=4,
    ),
)
def test_valid_msgpack_with_any_values_is_a_message_or_refused(vector, changes):
    try:
        data = _pack({**vector["fields"], **changes})
    except OverflowError:
        return  # a key beyond 64 bits cannot be on the wire
    refusal(data)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(REQUESTS)), st.integers(-(2**63), 2**63 - 1) | st.text(min_size=1, max_size=128))
def test_a_request_with_bad_fields_is_answered_under_its_id(tag, request_id):
    bad = refusal(_pack({"type": tag, "id": request_id, "x": {3: 4}}))
    assert bad is not None
    surrogates = isinstance(request_id, str) and any("\ud800" <= c <= "\udfff" for c in request_id)
    assert bad.reply_to == (None if surrogates else request_id)


def test_an_answer_is_decoded_with_the_same_care():
    for vector in vectors.load("answers"):
        whole = bytes.fromhex(vector["hex"])
        for length in range(len(whole)):
            with pytest.raises(BadMessage):
                decode_answer(whole[:length])
    with pytest.raises(BadMessage):
        decode_answer(packed(type="ping", id=1))
