"""What C#, C++, Lua and JavaScript libraries send differently, and what no library may get from us."""

import math

import msgpack
import msgspec
import pytest

from npc_runtime.protocol import BadMessage, decode_answer, decode_request, encode
from npc_runtime.protocol.messages import (
    ANSWERS,
    REQUESTS,
    AdapterScale,
    AddPersona,
    Error,
    OpenSession,
    Ping,
    Pong,
    SetAdapterScales,
    StartTurn,
    TurnDelta,
)

MAX_BYTES = 262_144


def decoded(fields):
    return decode_request(msgpack.packb(fields), MAX_BYTES)


def refused(fields) -> BadMessage:
    with pytest.raises(BadMessage) as caught:
        decoded(fields)
    return caught.value


def start(**more):
    return {"type": "start_turn", "id": 3, "session_id": "s", "turn_id": "t", "text": "Hi", **more}


def test_byte_strings_are_text_in_keys_values_and_nested_maps():
    fields = {b"type": b"start_turn", b"id": b"q", b"session_id": b"s", b"turn_id": b"t", b"text": "héllo".encode()}
    fields[b"adapters"] = [{b"name": b"mira", b"scale": 0.5}]
    request = decoded(fields)
    assert request == StartTurn(
        id="q", session_id="s", turn_id="t", text="héllo", adapters=(AdapterScale("mira", 0.5),)
    )


def test_a_byte_string_that_is_not_text_is_refused_under_the_id():
    bad = refused({"type": "ping", "id": 9, "x": b"\xff\xfe"})
    assert (bad.error.code, bad.reply_to) == ("malformed_message", 9)


def test_text_that_is_not_utf8_is_refused_under_the_id():
    half_a_pair = b"\x83\xa4type\xa4ping\xa2id\x09\xa1x\xa3\xed\xa0\xbd"
    with pytest.raises(BadMessage) as caught:
        decode_request(half_a_pair, MAX_BYTES)
    assert (caught.value.error.code, caught.value.reply_to) == ("malformed_message", 9)
    assert "UTF-8" in caught.value.error.message


def test_an_id_that_is_not_utf8_is_not_given_back():
    with pytest.raises(BadMessage) as caught:
        decode_request(b"\x82\xa4type\xa4ping\xa2id\xa1\xff", MAX_BYTES)
    assert caught.value.reply_to is None


def test_a_key_that_is_not_utf8_is_refused():
    with pytest.raises(BadMessage) as caught:
        decode_request(b"\x83\xa4type\xa4ping\xa2id\x09\xa1\xff\x01", MAX_BYTES)
    assert (caught.value.error.code, caught.value.reply_to) == ("malformed_message", 9)


def test_integer_keys_are_refused_and_the_key_is_named():
    bad = refused({"type": "ping", "id": 9, 42: "x"})
    assert (bad.error.code, bad.reply_to) == ("malformed_message", 9)
    assert "42" in bad.error.message


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_an_id_over_63_bits_is_refused(number):
    bad = refused({"type": "ping", "id": number})
    assert (bad.error.code, bad.reply_to) == ("invalid_field", None)


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**53, 2**63 - 1])
def test_negative_and_large_ids_come_back_as_they_are(number):
    request = decoded({"type": "ping", "id": number})
    assert request == Ping(id=number)
    assert decode_answer(encode(Pong(reply_to=request.id))).reply_to == number


@pytest.mark.parametrize("number", [-1, 2**32, 2**64 - 1])
def test_a_seed_out_of_range_is_refused_by_name(number):
    assert "sampling.seed" in refused(start(sampling={"seed": number})).error.message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scales_and_sampling_that_are_no_numbers_are_refused(value):
    assert refused({"type": "set_adapter_scales", "id": 1, "scales": {"a": value}}).error.code == "invalid_field"
    assert "scale" in refused(start(adapters=[{"name": "a", "scale": value}])).error.message
    for name in ("temperature", "top_p", "min_p", "repeat_penalty"):
        assert name in refused(start(sampling={name: value})).error.message


def test_32_bit_floats_and_integers_are_numbers():
    half = b"\x84\xa4type\xb2set_adapter_scales\xa2id\x01\xa7persona\xa1p\xa6scales\x81\xa1a\xca\x3f\x00\x00\x00"
    assert decode_request(half, MAX_BYTES) == SetAdapterScales(id=1, persona="p", scales={"a": 0.5})
    assert decoded(start(sampling={"temperature": 0})).sampling.temperature == 0


def test_a_32_bit_nan_is_refused():
    nan = b"\x84\xa4type\xb2set_adapter_scales\xa2id\x01\xa7persona\xa1p\xa6scales\x81\xa1a\xca\x7f\xc0\x00\x00"
    with pytest.raises(BadMessage) as caught:
        decode_request(nan, MAX_BYTES)
    assert (caught.value.error.code, caught.value.reply_to) == ("invalid_field", 1)


@pytest.mark.parametrize("field", ["include_tokens"])
@pytest.mark.parametrize("value", [0, 1, "true"])
def test_a_number_is_no_boolean(field, value):
    assert field in refused(start(**{field: value})).error.message


def test_a_boolean_is_no_number():
    assert "max_tokens" in refused(start(max_tokens=True)).error.message
    assert refused({"type": "ping", "id": True}).reply_to is None


def test_nil_is_the_same_as_an_optional_field_left_out():
    assert decoded(start(adapters=None, sampling=None, max_tokens=None)) == decoded(start())
    assert decoded({"type": "open_session", "id": 1, "persona": "p", "session_id": None}) == OpenSession(
        id=1, persona="p"
    )


def test_an_empty_array_of_adapters_is_not_the_same_as_none():
    assert decoded(start(adapters=[])).adapters == ()


@pytest.mark.parametrize(
    "extension",
    [
        b"\xd4\x05\x00",
        b"\xc7\x00\x05",
        b"\xd6\xff\x00\x00\x00\x01",
        b"\xd7\xff\x00\x00\x00\x00\x00\x00\x00\x01",
        b"\xc7\x0c\xff" + b"\x00" * 12,
    ],
    ids=["fixext", "empty_ext", "timestamp32", "timestamp64", "timestamp96"],
)
def test_extension_types_and_timestamps_are_refused_under_the_id(extension):
    with pytest.raises(BadMessage) as caught:
        decode_request(b"\x83\xa4type\xa4ping\xa2id\x09\xa1x" + extension, MAX_BYTES)
    assert (caught.value.error.code, caught.value.reply_to) == ("malformed_message", 9)


def test_a_timestamp_that_is_none_is_refused():
    with pytest.raises(BadMessage) as caught:
        decode_request(b"\x83\xa4type\xa4ping\xa2id\x09\xa1x\xd4\xff\x00", MAX_BYTES)
    assert caught.value.error.code == "malformed_message"


SURROGATE = "half \ud83d a pair"


def with_surrogates(value):
    """``value`` with half a surrogate pair in each of its texts."""
    if isinstance(value, str):
        return SURROGATE
    if isinstance(value, dict):
        return {key: with_surrogates(item) if key != "type" else item for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_surrogates(item) for item in value]
    return value


def test_half_a_surrogate_pair_in_a_reply_is_sent_as_a_question_mark():
    answer = decode_answer(encode(TurnDelta(reply_to=1, turn_id="t", index=0, text=SURROGATE)))
    assert answer.text == "half ? a pair"


@pytest.mark.parametrize(
    "answer",
    [
        TurnDelta(reply_to=SURROGATE, turn_id=SURROGATE, index=0, text=SURROGATE),
        Error(reply_to=None, code=SURROGATE, message=SURROGATE, fault=SURROGATE, retryable=False, turn_id=SURROGATE),
        AddPersona(id=SURROGATE, yaml=SURROGATE),
        SetAdapterScales(id=1, persona="p", scales={SURROGATE: 1.0}),
        StartTurn(id=1, session_id="s", turn_id="t", text="x", adapters=(AdapterScale(SURROGATE),)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_encoding_never_fails_on_text(answer):
    data = encode(answer)
    assert msgpack.unpackb(data)["type"] == type(answer).__struct_config__.tag


def test_encoding_never_fails_on_numbers_that_are_none():
    scales = SetAdapterScales(id=1, persona="p", scales={"a": math.nan, "b": math.inf})
    assert math.isnan(msgpack.unpackb(encode(scales))["scales"]["a"])


def test_fields_that_nobody_knows_are_ignored():
    known = {"type": "ping", "id": 1}
    assert decoded({**known, "mood": {"grim": [1, 2, None]}, "": 0}) == decoded(known)


def test_answers_with_fields_that_nobody_knows_are_read():
    data = msgpack.packb({"type": "pong", "reply_to": 1, "new_in_version_2": [1]})
    assert decode_answer(data) == Pong(reply_to=1)


def test_a_misspelled_sampling_parameter_is_named():
    assert "temprature" in refused(start(sampling={"temprature": 0})).error.message
    assert "sclae" in refused(start(adapters=[{"name": "a", "sclae": 0}])).error.message


def test_an_unknown_type_is_named_with_what_is_allowed_and_the_nearest():
    bad = refused({"type": "start_trun", "id": 5})
    assert (bad.error.code, bad.reply_to) == ("unknown_type", 5)
    assert "'start_trun'" in bad.error.message
    assert "Did you mean 'start_turn'?" in bad.error.message
    for known in REQUESTS:
        assert known in bad.error.message


def test_an_answer_is_no_request():
    for tag in ANSWERS:
        assert refused({"type": tag, "id": 5}).error.code == "unknown_type"


@pytest.mark.parametrize(("tag", "cls"), sorted(REQUESTS.items()))
def test_every_missing_field_is_named_under_the_requests_id(tag, cls):
    required = {field.name for field in msgspec.structs.fields(cls) if field.required} - {"id"}
    if required:
        bad = refused({"type": tag, "id": "q7"})
        assert (bad.error.code, bad.reply_to) == ("invalid_field", "q7")
        assert any(f"`{name}`" in bad.error.message for name in required)
    assert refused({"type": tag}).reply_to is None
