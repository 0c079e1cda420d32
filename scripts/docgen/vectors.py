"""Golden byte vectors: messages and their exact bytes, for client libraries in other languages.

* ``requests`` and ``answers``: every message as this implementation writes it; ``hex`` decodes to ``fields`` and back.
* ``accepted``: requests as other libraries write them (byte strings for text, left-out fields, fields nobody knows,
  32-bit floats); ``fields`` is how they are understood.
* ``malformed``: bytes that are answered with an ``error`` of ``code``, with ``reply_to`` where the id can be read.

Integers stay below 2^53, so that every language's JSON reader gives them exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgpack
import msgspec

from npc_runtime.protocol import BadMessage, decode_request, encode
from npc_runtime.protocol import messages as m
from npc_runtime.sampling import SamplingOverrides

MAX_BYTES = 262_144

_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_SET = (m.AdapterScale("mira"), m.AdapterScale("weather", -0.5))
_USED = (m.AdapterUse("mira", _DIGEST, 1.0), m.AdapterUse("weather", _DIGEST[::-1], -0.5))
_INFO = m.PersonaInfo(
    id="mira",
    name="Mira Quill",
    summary="Ferrywoman of Sallowferry.",
    source="mira.yaml",
    version="4a5e1e4baab8",
    available=True,
    adapters=_SET,
    problem="",
)
_BROKEN = m.PersonaInfo(
    id="pim",
    name="Pim",
    summary="",
    source="wire",
    version="",
    available=False,
    adapters=(),
    problem="adapter 'pim' is not in the adapters folder",
)
_FINISHED = m.TurnFinished(
    reply_to=3,
    turn_id="t-1",
    session_id="s-1",
    persona="mira",
    text="Cold. Wet too.",
    finish_reason="end",
    kept=True,
    fallback=False,
    rebuilt=False,
    dropped_exchanges=0,
    usage=m.Usage(prompt_tokens=212, reused_tokens=180, new_tokens=32, generated_tokens=6, reused_ram=180),
    timings=m.Timings(
        queue_ms=0.25,
        switch_ms=0.0,
        prefill_ms=61.5,
        ttft_ms=73.125,
        decode_ms=54.75,
        restore_ms=1.5,
        tpot_ms=9.125,
        preempted_ms=0.0,
    ),
    adapters=_USED,
    seed=4294967295,
)
_ENGINE = m.EngineStatus(
    state="ready",
    pid=4243,
    restarts=1,
    last_error="engine process 4242 ended (signal 9): no last words",
    model="SmolLM2 135M Instruct",
    model_digest=_DIGEST,
    architecture="llama",
    context_tokens=2048,
    lanes=8,
    lanes_bound=2,
    kv_bytes=377_487_360,
    kv_bytes_per_token=23_040,
    ram_bytes=6_800_000,
    ram_snapshots=1,
    disk_bytes=0,
    disk_snapshots=0,
    kv_files_dropped=0,
    evictions=5,
    restored_resident=1,
    restored_ram=4,
    restored_disk=0,
    adapters_loaded=3,
    adapter_loads=3,
    adapter_switches=4,
    decode_calls=1234,
    decoded_tokens=5678,
)
_PAST = m.PastExchange(player="Is it cold?", reply="Wet — 濡れる.", tokens=(0, 127, 49151), rest=".", cuts=(3, 64))

REQUESTS: Mapping[str, m.Request] = {
    "hello.minimal": m.Hello(id=1, protocol=m.PROTOCOL_VERSION),
    "hello.full": m.Hello(id="first", protocol=m.PROTOCOL_VERSION, client="Ferry Game 1.0"),
    "open_session.minimal": m.OpenSession(id=2, persona="mira"),
    "open_session.full": m.OpenSession(id=2, persona="mira", session_id="save-7/mira", player="Zoë 旅人"),
    "open_session.with_history": m.OpenSession(
        id=2, persona="mira", history=(_PAST, m.PastExchange(player="And now?", reply="Colder."))
    ),
    "get_history.full": m.GetHistory(id=12, session_id="s-1"),
    "warm.persona": m.Warm(id=13, persona="mira", player="Zoë 旅人"),
    "warm.session": m.Warm(id=13, session_id="s-1"),
    "prime.full": m.Prime(id=14, session_id="s-1", text="Is the water cold?", complete=True),
    "flush.all": m.Flush(id=15),
    "flush.persona": m.Flush(id=15, persona="mira"),
    "flush.session": m.Flush(id=15, session_id="s-1"),
    "close_session.full": m.CloseSession(id=9, session_id="s-1"),
    "start_turn.minimal": m.StartTurn(id=3, session_id="s-1", turn_id="t-1", text="Is the water cold?"),
    "start_turn.full": m.StartTurn(
        id=2**53 - 1,
        session_id="s-1",
        turn_id="t-2",
        text="Ça va?\n🛶 " + "so cold … " * 30,
        adapters=_SET,
        sampling=SamplingOverrides(
            temperature=0.0, top_k=1, top_p=0.5, min_p=0.25, repeat_penalty=1.0, repeat_last_n=0, seed=4294967295
        ),
        max_tokens=12,
        min_tokens=1,
        include_tokens=True,
        priority="player",
        deadline_ms=1500.5,
    ),
    "start_turn.base_model": m.StartTurn(id=4, session_id="s-1", turn_id="t-3", text="Hello.", adapters=()),
    "start_turn.drawn_seed": m.StartTurn(
        id=5, session_id="s-1", turn_id="t-4", text="Hello.", sampling=SamplingOverrides(seed=None)
    ),
    "cancel_turn.minimal": m.CancelTurn(id=-1, turn_id="t-1"),
    "cancel_turn.full": m.CancelTurn(id=-129, turn_id="t-1", keep=True),
    "list_personas.full": m.ListPersonas(id=200),
    "add_persona.minimal": m.AddPersona(id=70_000, yaml="schema: npc/1\nid: tam\nname: Tam\n"),
    "add_persona.full": m.AddPersona(id=5_000_000_000, yaml="schema: npc/1\nid: tam\nname: Tam\n", replace=True),
    "remove_persona.full": m.RemovePersona(id="r", persona="tam"),
    "set_adapter_scales.take_back": m.SetAdapterScales(id=6, persona="mira", scales=None),
    "set_adapter_scales.persona": m.SetAdapterScales(id=6, persona="mira", scales={"mira": 0.4, "weather": 0.0}),
    "set_adapter_scales.session": m.SetAdapterScales(id=7, session_id="s-1", scales={}),
    "get_status.full": m.GetStatus(id=8),
    "ping.full": m.Ping(id="p" * 128),
}

ANSWERS: Mapping[str, m.Answer] = {
    "welcome.full": m.Welcome(
        reply_to=1, protocol=m.PROTOCOL_VERSION, version="0.1.0", daemon_id="6fd2a1c09b3e7d45", state="loading"
    ),
    "session_opened.new": m.SessionOpened(
        reply_to=2,
        session_id="s-1",
        persona="mira",
        name="Mira Quill",
        greeting="Another one. Three coppers.",
        resumed=False,
        turns=0,
    ),
    "session_opened.resumed": m.SessionOpened(
        reply_to="two", session_id="s-1", persona="pim", name="Pim", greeting="", resumed=True, turns=300
    ),
    "session_closed.full": m.SessionClosed(reply_to=9, session_id="s-1"),
    "history.empty": m.History(
        reply_to=12, session_id="s-1", persona="mira", player="Player", exchanges=(), dropped_exchanges=0
    ),
    "history.full": m.History(
        reply_to=12, session_id="s-1", persona="mira", player="Zoë 旅人", exchanges=(_PAST,), dropped_exchanges=7
    ),
    "warmed.full": m.Warmed(reply_to=13, ready_tokens=197, computed_tokens=5, superseded=False),
    "primed.full": m.Primed(reply_to=14, session_id="s-1", ready_tokens=216, computed_tokens=2, superseded=False),
    "primed.superseded": m.Primed(reply_to=14, session_id="s-1", ready_tokens=0, computed_tokens=0, superseded=True),
    "flushed.full": m.Flushed(reply_to=15),
    "turn_started.base_model": m.TurnStarted(
        reply_to=3, turn_id="t-1", session_id="s-1", persona="pim", name="Pim", adapters=(), seed=0
    ),
    "turn_started.full": m.TurnStarted(
        reply_to=3, turn_id="t-1", session_id="s-1", persona="mira", name="Mira Quill", adapters=_USED, seed=4294967295
    ),
    "turn_delta.first": m.TurnDelta(reply_to=3, turn_id="t-1", index=0, text="Cold."),
    "turn_delta.unicode": m.TurnDelta(reply_to=3, turn_id="t-1", index=70_000, text=" Wet — 濡れる 🛶"),
    "turn_finished.minimal": _FINISHED,
    "turn_finished.full": msgspec.structs.replace(_FINISHED, finish_reason="length", tokens=(0, 127, 128, 49151)),
    "turn_finished.cancelled": msgspec.structs.replace(
        _FINISHED,
        text="",
        finish_reason="cancelled",
        kept=False,
        usage=m.Usage(0, 0, 0, 0),
        timings=m.Timings(12.5, 0.0, 0.0, 0.0, 0.0),
        adapters=(),
        seed=0,
    ),
    "turn_finished.fallback": msgspec.structs.replace(
        _FINISHED, text="…", kept=False, fallback=True, rebuilt=True, dropped_exchanges=3
    ),
    **{
        f"turn_cancelled.{was}": m.TurnCancelled(reply_to=-1, turn_id="t-1", was=was)
        for was in ("queued", "running", "finished", "unknown")
    },
    "personas.none": m.Personas(reply_to=200, personas=()),
    "personas.full": m.Personas(reply_to=200, personas=(_INFO, _BROKEN)),
    "persona_added.full": m.PersonaAdded(reply_to=70_000, persona=_INFO, replaced=True),
    "persona_removed.full": m.PersonaRemoved(reply_to="r", persona="tam"),
    "adapter_scales_set.persona": m.AdapterScalesSet(reply_to=6, persona="mira", session_id=None, adapters=_SET),
    "adapter_scales_set.session": m.AdapterScalesSet(reply_to=7, persona="mira", session_id="s-1", adapters=()),
    "status.minimal": m.Status(
        reply_to=8,
        state="loading",
        version="0.1.0",
        protocol=m.PROTOCOL_VERSION,
        daemon_id="6fd2a1c09b3e7d45",
        pid=4241,
        uptime_s=0.5,
        clients=1,
        sessions=0,
        turns_queued=0,
        turns_finished=0,
        turns_failed=0,
        running_turn=None,
        turns_active=0,
        personas=0,
        personas_unavailable=0,
        problems=(),
        rss_bytes=52_428_800,
        engine=msgspec.structs.replace(_ENGINE, state="starting", pid=None, restarts=0, last_error=""),
    ),
    "status.full": m.Status(
        reply_to=8,
        state="ready",
        version="0.1.0",
        protocol=m.PROTOCOL_VERSION,
        daemon_id="6fd2a1c09b3e7d45",
        pid=4241,
        uptime_s=3600.25,
        clients=2,
        sessions=3,
        turns_queued=1,
        turns_finished=40,
        turns_failed=1,
        running_turn="t-1",
        turns_active=2,
        personas=3,
        personas_unavailable=1,
        problems=(m.Problem("pim.yaml", 7, "pim.yaml:7: unknown key 'nmae'. Did you mean 'name'?", 1767225600.5),),
        rss_bytes=5_368_709_120,
        engine=_ENGINE,
    ),
    "pong.full": m.Pong(reply_to="p" * 128),
    "error.minimal": m.Error(
        reply_to=None,
        code="malformed_message",
        message="the message is not valid msgpack",
        fault="request",
        retryable=False,
    ),
    "error.full": m.Error(
        reply_to=3,
        code="engine_crashed",
        message="the engine process ended during this turn",
        fault="runtime",
        retryable=True,
        turn_id="t-1",
    ),
    "error.busy": m.Error(
        reply_to=3,
        code="busy",
        message="64 turns are waiting",
        fault="request",
        retryable=True,
        position=64,
        retry_after_ms=2000.5,
    ),
}


def _start(**more: Any) -> dict[str, Any]:
    return {"type": "start_turn", "id": 3, "session_id": "s-1", "turn_id": "t-1", "text": "Hello.", **more}


ACCEPTED: Mapping[str, bytes] = {
    "binary_text": msgpack.packb(
        {b"type": b"open_session", b"id": b"x", b"persona": b"mira", b"player": "Zoë".encode()}
    ),
    "float32": b"\x84\xa4type\xb2set_adapter_scales\xa2id\x06\xa7persona\xa4mira\xa6scales\x81\xa4mira\xca"
    + struct.pack(">f", 0.5),
    "integer_for_number": msgpack.packb({"type": "set_adapter_scales", "id": 6, "persona": "a", "scales": {"a": 1}}),
    "large_integer_form": b"\x82\xa4type\xa4ping\xa2id\xcf" + (7).to_bytes(8, "big"),
    "left_out_fields": msgpack.packb(_start()),
    "nil_for_optional": msgpack.packb(_start(adapters=None, sampling=None, max_tokens=None)),
    "repeated_key_last_wins": b"\x83\xa4type\xa4ping\xa2id\x01\xa2id\x02",
    "unknown_fields": msgpack.packb({"mood": ["grim", {"deep": 1}], "type": "ping", "id": 1, "zzz": None}),
}


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


MALFORMED: Mapping[str, tuple[bytes, str, Any]] = {
    "array": (msgpack.packb(["ping", 1]), "malformed_message", None),
    "array_length_bomb": (b"\xdd\xff\xff\xff\xff", "malformed_message", None),
    "bad_utf8": (b"\x83\xa4type\xa4ping\xa2id\x05\xa1x\xa2\xc3\x28", "malformed_message", 5),
    "bad_utf8_binary": (msgpack.packb({"type": "ping", "id": 5, "x": b"\xff"}), "malformed_message", 5),
    "blank_id": (msgpack.packb({"type": "ping", "id": ""}), "invalid_field", None),
    "boolean_as_integer": (msgpack.packb(_start(include_tokens=1)), "invalid_field", 3),
    "boolean_id": (msgpack.packb({"type": "ping", "id": True}), "invalid_field", None),
    "empty": (b"", "malformed_message", None),
    "empty_map": (b"\x80", "unknown_type", None),
    "extension_type": (b"\x83\xa4type\xa4ping\xa2id\x05\xa1x\xd4\x07\x00", "malformed_message", 5),
    "field_missing": (msgpack.packb({"type": "open_session", "id": 5}), "invalid_field", 5),
    "field_wrong_type": (msgpack.packb({"type": "open_session", "id": "q", "persona": 7}), "invalid_field", "q"),
    "float_id": (msgpack.packb({"type": "ping", "id": 1.5}), "invalid_field", None),
    "http": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "malformed_message", None),
    "id_too_long": (msgpack.packb({"type": "ping", "id": "p" * 129}), "invalid_field", None),
    "id_too_large": (msgpack.packb({"type": "ping", "id": 2**63}), "invalid_field", None),
    "integer": (b"\x07", "malformed_message", None),
    "integer_key": (msgpack.packb({"type": "ping", "id": 5, 1: 2}), "malformed_message", 5),
    "integer_keys_only": (msgpack.packb({0: "ping", 1: 5}), "malformed_message", None),
    "lone_surrogate": (b"\x83\xa4type\xa4ping\xa2id\x05\xa1x\xa3\xed\xa0\xbd", "malformed_message", 5),
    "map_as_key": (b"\x81\x80\x01", "malformed_message", None),
    "nan_scale": (
        msgpack.packb({"type": "set_adapter_scales", "id": 6, "persona": "a", "scales": {"a": float("nan")}}),
        "invalid_field",
        6,
    ),
    "nesting": (msgpack.packb({"type": "ping", "id": 5, "x": _nested(20)}), "malformed_message", 5),
    "nesting_bomb": (b"\x91" * 1200, "malformed_message", None),
    "never_used_byte": (b"\xc1", "malformed_message", None),
    "nil": (b"\xc0", "malformed_message", None),
    "scale_out_of_range": (
        msgpack.packb({"type": "set_adapter_scales", "id": 6, "persona": "a", "scales": {"a": 9}}),
        "invalid_field",
        6,
    ),
    "seed_out_of_range": (msgpack.packb(_start(sampling={"seed": 2**32})), "invalid_field", 3),
    "timestamp": (b"\x83\xa4type\xa4ping\xa2id\x05\xa1x\xd6\xff\x00\x00\x00\x01", "malformed_message", 5),
    "trailing_bytes": (msgpack.packb({"type": "ping", "id": 5}) + b"\x00", "malformed_message", None),
    "truncated": (msgpack.packb({"type": "ping", "id": 5})[:-1], "malformed_message", None),
    "type_is_a_number": (msgpack.packb({"type": 7, "id": 5}), "unknown_type", 5),
    "type_missing": (msgpack.packb({"id": 5}), "unknown_type", 5),
    "unknown_sampling_parameter": (msgpack.packb(_start(sampling={"temprature": 0})), "invalid_field", 3),
    "unknown_type": (msgpack.packb({"type": "start_turns", "id": 5}), "unknown_type", 5),
}


def all_files() -> dict[str, list[dict[str, Any]]]:
    """The content of each vector file, by its name without ``.json``. Raises ValueError where a vector is wrong."""
    return {
        "requests": [_golden(name, "request", message) for name, message in _sorted(REQUESTS, m.REQUESTS)],
        "answers": [_golden(name, "answer", message) for name, message in _sorted(ANSWERS, m.ANSWERS)],
        "accepted": [_accepted(name, data) for name, data in sorted(ACCEPTED.items())],
        "malformed": [_malformed(name, *expected) for name, expected in sorted(MALFORMED.items())],
    }


def _sorted(examples: Mapping[str, Any], known: Iterable[str]) -> list[tuple[str, Any]]:
    missing = set(known) - {name.partition(".")[0] for name in examples}
    if missing:
        raise ValueError(f"messages without an example in scripts/docgen/vectors.py: {', '.join(sorted(missing))}")
    return sorted(examples.items())


def _golden(name: str, direction: str, message: m.Request | m.Answer) -> dict[str, Any]:
    fields = msgspec.to_builtins(message)
    return {
        "name": name,
        "direction": direction,
        "type": fields["type"],
        "fields": fields,
        "hex": encode(message).hex(),
    }


def _accepted(name: str, data: bytes) -> dict[str, Any]:
    fields = msgspec.to_builtins(decode_request(data, MAX_BYTES))
    return {"name": name, "direction": "request", "type": fields["type"], "fields": fields, "hex": data.hex()}


def _malformed(name: str, data: bytes, code: str, reply_to: Any) -> dict[str, Any]:
    try:
        decode_request(data, MAX_BYTES)
    except BadMessage as bad:
        if (bad.error.code, bad.reply_to) == (code, reply_to):
            return {"name": name, "direction": "request", "code": code, "reply_to": reply_to, "hex": data.hex()}
        raise ValueError(f"malformed vector {name} gives {bad.error.code}, {bad.reply_to!r}: {bad}") from None
    raise ValueError(f"malformed vector {name} is accepted")


def example_in_words() -> str:
    """The byte-for-byte example: two requests on a fresh connection, down to the frame."""
    hello = REQUESTS["hello.minimal"]
    welcome = ANSWERS["welcome.full"]
    return "\n\n".join(
        f"{title}\n\n```text\n{_frame(encode(message))}\n```\n\n```json\n{msgspec.json.encode(message).decode()}\n```"
        for title, message in (("The client's `hello`:", hello), ("The daemon's `welcome`:", welcome))
    )


def _frame(body: bytes) -> str:
    """The frame (of a short message) and what each part of it is."""
    fields = msgpack.unpackb(body)
    lines = [(bytes([0, len(body)]), f"frame: no flags, {len(body)} bytes follow"), (body[:1], f"map of {len(fields)}")]
    for item in (part for field in fields.items() for part in field):
        lines.append((msgpack.packb(item), msgspec.json.encode(item).decode()))
    width = max(len(data.hex(" ")) for data, _ in lines)
    return "\n".join(f"{data.hex(' '):{width}}  {meaning}" for data, meaning in lines)
