"""Every message of the wire, defined once.

From these definitions come validation, the tables of ``docs/protocol.md`` and the golden byte vectors in
``tests/vectors/``. Rules kept here: a message is one msgpack map with string keys; ``type`` names it; a request
carries an ``id`` of the client's choosing and every answer to it carries that value as ``reply_to``; fields are only
ever added, never re-typed; receivers ignore fields they do not know.

Units: times are milliseconds (float), counts are integers, texts are UTF-8 strings.
"""

from __future__ import annotations

from typing import Annotated, Literal, Union, get_args

import msgspec
from msgspec import Meta

from npc_runtime.sampling import SamplingOverrides

PROTOCOL_VERSION = 1

MAX_SCALE = 8.0

Id = Annotated[str, Meta(min_length=1, max_length=128, description="1 to 128 characters")]
RequestId = Union[Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], Id]
Text = Annotated[str, Meta(description="UTF-8 text")]
Scale = Annotated[
    float, Meta(ge=-MAX_SCALE, le=MAX_SCALE, description=f"-{MAX_SCALE:g} to {MAX_SCALE:g}; 0 = without this adapter")
]
TokenLimit = Annotated[int, Meta(ge=1, le=8192, description="tokens")]
FinishReason = Literal["end", "stop", "length", "time", "loop", "cancelled"]
Priority = Literal["player", "normal", "ambient"]
Tokens = tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...]


class AdapterScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter of a requested set: the file's name in the adapters folder (without ``.gguf``) and its scale."""

    name: Id
    scale: Scale = 1.0


class AdapterListed(msgspec.Struct, frozen=True):
    """One adapter of a persona and the scale it has there."""

    name: str
    scale: float


class AdapterUse(msgspec.Struct, frozen=True):
    """One adapter that a reply was really computed with: name, sha256 of the file's content, exact scale."""

    name: str
    digest: Annotated[str, Meta(description="sha256 of the file's content, 64 hexadecimal digits")]
    scale: float


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a turn. ``prompt = reused + new``; ``generated`` are the reply's tokens.

    ``reused = resident + ram + disk``, by where the KV was.
    """

    prompt_tokens: Annotated[int, Meta(description="all that the model read")]
    reused_tokens: Annotated[int, Meta(description="of these, how many were in the KV cache already")]
    new_tokens: Annotated[int, Meta(description="of these, how many were computed for this turn")]
    generated_tokens: Annotated[int, Meta(description="what the model wrote, tokens that are not shown included")]
    reused_resident: Annotated[int, Meta(description="reused where they were, or copied from another lane")] = 0
    reused_ram: Annotated[int, Meta(description="copied back from memory")] = 0
    reused_disk: Annotated[int, Meta(description="read from `kv_dir`")] = 0


class Timings(msgspec.Struct, frozen=True):
    """Milliseconds. ``ttft`` counts from the arrival of ``start_turn`` to its first text."""

    queue_ms: Annotated[float, Meta(description="waited for its turn")]
    switch_ms: Annotated[
        float,
        Meta(description="the prompt's plan and a lane: loading and binding adapters, copying away what was in it"),
    ]
    prefill_ms: Annotated[float, Meta(description="reading the new tokens")]
    ttft_ms: Annotated[float, Meta(description="from arrival to the first text; 0 where there was none")]
    decode_ms: Annotated[float, Meta(description="writing the reply")]
    restore_ms: Annotated[float, Meta(description="copying the conversation's KV into the lane")] = 0.0
    tpot_ms: Annotated[float, Meta(description="time per output token: `decode_ms` by the tokens written")] = 0.0
    preempted_ms: Annotated[float, Meta(description="other turns had precedence after this one had begun")] = 0.0


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all that a client sends. ``id`` is chosen by the client and echoed as ``reply_to``."""

    id: RequestId


class Hello(Request, frozen=True, kw_only=True, tag="hello"):
    """First message of every connection; answered by ``welcome`` in every state of the daemon."""

    protocol: Annotated[int, Meta(description="protocol version the client speaks")]
    client: Annotated[str, Meta(max_length=200, description="name and version of the client, for the log")] = ""


class PastExchange(msgspec.Struct, frozen=True):
    """One player line and the reply to it, as ``history`` gives them and ``open_session`` takes them back.

    ``tokens``, ``rest`` and ``cuts`` say how the model computed it, so that it goes on as if nothing had happened; with
    none of them the text is read anew.
    """

    player: Annotated[str, Meta(max_length=20_000, description="what the player said")]
    reply: Annotated[str, Meta(max_length=20_000, description="what the character answered")]
    tokens: Annotated[Tokens, Meta(description="the reply's token ids")] = ()
    rest: Annotated[str, Meta(description="the end of the reply that is not in `tokens`")] = ""
    cuts: Annotated[Tokens, Meta(description="sizes of the decode calls of the player's line")] = ()


class OpenSession(Request, frozen=True, kw_only=True, tag="open_session"):
    """Begin (or take up again) a conversation with one persona.

    With ``history`` a new session begins with these exchanges (a saved game, or a past that the writer made up); a
    session that is open already keeps its own.
    """

    persona: Annotated[Id, Meta(description="persona id")]
    session_id: Annotated[Id | None, Meta(description="chosen by the client, or null: the daemon chooses")] = None
    player: Annotated[str, Meta(max_length=100, description="the player's name as the character knows it")] = "Player"
    history: Annotated[tuple[PastExchange, ...], Meta(description="what was said before, oldest first")] = ()


class GetHistory(Request, frozen=True, kw_only=True, tag="get_history"):
    """Ask for what the next prompt of a session remembers, to be kept in a saved game."""

    session_id: Id


class Warm(Request, frozen=True, kw_only=True, tag="warm"):
    """The player comes near: have lane, adapters and prompt ready before anything is said.

    For a session: all up to where the player's line begins; for a persona: its fixed part, for all new sessions with
    that ``player`` name. Real turns go first.
    """

    persona: Annotated[Id | None, Meta(description="either the persona …")] = None
    session_id: Annotated[Id | None, Meta(description="… or the session")] = None
    player: Annotated[str, Meta(max_length=100, description="with `persona`: the player's name")] = "Player"


class Prime(Request, frozen=True, kw_only=True, tag="prime"):
    """The player's line so far, while it is being typed or spoken: it is read in advance, all but its last word.

    The turn that follows pays only for what differs. Where the line may end here (the player has stopped typing, the
    speech recogniser has heard a pause), ``complete`` has its last word and all that follows it read as well: if the
    turn says just that, one token is left to compute. A newer ``prime`` takes the place of an older one of the same
    session, a turn of that session too. Real turns go first.
    """

    session_id: Id
    text: Annotated[Text, Meta(description="the line so far")]
    complete: Annotated[bool, Meta(description="the line may end here; it may go on all the same")] = False


class Flush(Request, frozen=True, kw_only=True, tag="flush"):
    """Drop computed KV (in lanes, memory and on disk): of a session, of a persona, or with neither all of it.

    Conversations stay; their next turns are computed anew. For tests, and for memory that is needed elsewhere.
    """

    persona: Annotated[Id | None, Meta(description="only this persona's")] = None
    session_id: Annotated[Id | None, Meta(description="only this session's")] = None


class CloseSession(Request, frozen=True, kw_only=True, tag="close_session"):
    """Forget a conversation. Closing an unknown session is not an error."""

    session_id: Id


class StartTurn(Request, frozen=True, kw_only=True, tag="start_turn"):
    """The player says ``text``; the character answers. Ends with ``turn_finished`` or ``error``, exactly once.

    The same ``turn_id`` with the same body again attaches to the running or finished turn and never runs it twice.
    Turns of a higher ``priority`` go first, also before one that is running: that one waits and goes on afterwards.
    """

    session_id: Id
    turn_id: Annotated[Id, Meta(description="chosen by the client, unique for ever")]
    text: Annotated[Text, Meta(description="the player's line; not blank")]
    adapters: Annotated[
        tuple[AdapterScale, ...] | None,
        Meta(description="this one turn under exactly these adapters instead of the persona's; [] = the base model"),
    ] = None
    sampling: Annotated[SamplingOverrides | None, Meta(description="parameters that differ for this turn")] = None
    max_tokens: Annotated[TokenLimit | None, Meta(description="length limit of this reply; null: the persona's")] = None
    min_tokens: Annotated[int, Meta(ge=0, le=8192, description="the reply may not end by itself before")] = 0
    include_tokens: Annotated[bool, Meta(description="put the reply's token ids into turn_finished")] = False
    priority: Annotated[Priority, Meta(description="who goes first; who waited too long counts as `player`")] = "normal"
    deadline_ms: Annotated[
        Annotated[float, Meta(gt=0, le=86_400_000)] | None,
        Meta(description="milliseconds from its arrival; `deadline_exceeded` where nothing was said until then"),
    ] = None


class CancelTurn(Request, frozen=True, kw_only=True, tag="cancel_turn"):
    """Stop a turn. Idempotent; the turn itself still ends with its own ``turn_finished`` (reason ``cancelled``)."""

    turn_id: Id
    keep: Annotated[bool, Meta(description="true: what was said so far stays in the conversation")] = False


class ListPersonas(Request, frozen=True, kw_only=True, tag="list_personas"):
    """Ask for the catalog."""


class AddPersona(Request, frozen=True, kw_only=True, tag="add_persona"):
    """Add a persona from YAML text. It lives until it is removed or the daemon stops; no file is written."""

    yaml: Annotated[Text, Meta(description="the text of a persona file")]
    replace: Annotated[bool, Meta(description="true: take the place of a persona with the same id")] = False


class RemovePersona(Request, frozen=True, kw_only=True, tag="remove_persona"):
    """Take a persona out of the catalog. Its running turn finishes. A persona that came from a file comes back when
    the file is saved with other content, or with the daemon's next start; the file itself is never touched."""

    persona: Id


class SetAdapterScales(Request, frozen=True, kw_only=True, tag="set_adapter_scales"):
    """Change scales at run time, for a persona or for one session only, from the next turn on.

    ``scales`` maps adapter names to absolute scales (0 = exactly without it); null takes the change back.
    Precedence: ``start_turn.adapters``, then the session's scales, then the persona's, then the file.
    """

    persona: Annotated[Id | None, Meta(description="either the persona …")] = None
    session_id: Annotated[Id | None, Meta(description="… or the session")] = None
    scales: Annotated[dict[str, Scale] | None, Meta(description="adapter name to scale, or null")]


class GetStatus(Request, frozen=True, kw_only=True, tag="get_status"):
    """Ask how the daemon is."""


class Ping(Request, frozen=True, kw_only=True, tag="ping"):
    """Ask for a sign of life."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all that the daemon sends. ``reply_to`` is the request's ``id``; null where the id could not be read."""

    reply_to: RequestId | None


class Welcome(Answer, frozen=True, kw_only=True, tag="welcome"):
    """Answer to ``hello``. A changed ``daemon_id`` means that the daemon restarted and sessions are gone."""

    protocol: Annotated[int, Meta(description="protocol version the daemon speaks")]
    version: Annotated[str, Meta(description="version of the program")]
    daemon_id: Annotated[str, Meta(description="name of this run of the daemon")]
    state: Annotated[str, Meta(description="loading, ready, failed or draining")]


class SessionOpened(Answer, frozen=True, kw_only=True, tag="session_opened"):
    """The session is there. ``turns`` counts the exchanges it holds already."""

    session_id: str
    persona: str
    name: Annotated[str, Meta(description="the character's display name")]
    greeting: Annotated[str, Meta(description="the character's first line, to be shown; may be empty")]
    resumed: Annotated[bool, Meta(description="the session was there before")]
    turns: Annotated[int, Meta(description="exchanges it holds")]


class SessionClosed(Answer, frozen=True, kw_only=True, tag="session_closed"):
    """The session is forgotten; a turn that was running or queued in it is cancelled."""

    session_id: str


class History(Answer, frozen=True, kw_only=True, tag="history"):
    """What the session's next prompt remembers. ``dropped_exchanges`` older ones no longer fit."""

    session_id: str
    persona: str
    player: str
    exchanges: tuple[PastExchange, ...]
    dropped_exchanges: int


class Warmed(Answer, frozen=True, kw_only=True, tag="warmed"):
    """Answer to ``warm``: ``ready_tokens`` of the next prompt are computed."""

    ready_tokens: Annotated[int, Meta(description="in the KV cache now; 0 where it was superseded")]
    computed_tokens: Annotated[int, Meta(description="of these, how many were computed for this request")]
    superseded: Annotated[bool, Meta(description="a turn or a newer request took its place")]


class Primed(Answer, frozen=True, kw_only=True, tag="primed"):
    """Answer to ``prime``, with the same meaning as ``warmed``."""

    session_id: str
    ready_tokens: Annotated[int, Meta(description="in the KV cache now; 0 where it was superseded")]
    computed_tokens: Annotated[int, Meta(description="of these, how many were computed for this request")]
    superseded: Annotated[bool, Meta(description="a turn or a newer request took its place")]


class Flushed(Answer, frozen=True, kw_only=True, tag="flushed"):
    """The KV is dropped; what running turns use goes when they have ended."""


class TurnStarted(Answer, frozen=True, kw_only=True, tag="turn_started"):
    """The turn has left the queue; its persona version and adapters are fixed from here on."""

    turn_id: str
    session_id: str
    persona: str
    name: Annotated[str, Meta(description="the character's display name")]
    adapters: Annotated[
        tuple[AdapterUse, ...], Meta(description="what the turn is computed with; empty = the base model")
    ]
    seed: Annotated[int, Meta(description="the seed that is used, given or drawn")]


class TurnDelta(Answer, frozen=True, kw_only=True, tag="turn_delta"):
    """A piece of the reply. ``index`` counts from 0; all pieces in order are exactly the reply's text."""

    turn_id: str
    index: Annotated[int, Meta(description="0, 1, 2, …")]
    text: str


class TurnFinished(Answer, frozen=True, kw_only=True, tag="turn_finished"):
    """The turn's end. ``text`` is the whole reply, as the conversation keeps it."""

    turn_id: str
    session_id: str
    persona: str
    text: Annotated[str, Meta(description="the whole reply")]
    finish_reason: Annotated[FinishReason, Meta(description="why it ended")]
    kept: Annotated[bool, Meta(description="the exchange is part of the conversation")]
    fallback: Annotated[bool, Meta(description="the model gave nothing usable; text is a line of the writer's")]
    rebuilt: Annotated[bool, Meta(description="the conversation's KV had to be computed again")]
    dropped_exchanges: Annotated[int, Meta(description="oldest exchanges that no longer fit the context, in all")]
    usage: Usage
    timings: Timings
    adapters: Annotated[tuple[AdapterUse, ...], Meta(description="what it was computed with; empty = the base model")]
    seed: Annotated[int, Meta(description="the seed that was used")]
    tokens: Annotated[tuple[int, ...] | None, Meta(description="the reply's token ids, where asked for")] = None


class TurnCancelled(Answer, frozen=True, kw_only=True, tag="turn_cancelled"):
    """Answer to ``cancel_turn``: what the turn was when the cancel arrived."""

    turn_id: str
    was: Annotated[
        Literal["queued", "running", "finished", "unknown"],
        Meta(description="the turn's state when the cancel arrived"),
    ]


class PersonaInfo(msgspec.Struct, frozen=True):
    """One persona of the catalog."""

    id: str
    name: Annotated[str, Meta(description="display name")]
    summary: Annotated[str, Meta(description="one line: who is this")]
    source: Annotated[str, Meta(description="file name in the personas folder, or 'wire'")]
    version: Annotated[str, Meta(description="digest of the persona's content and its adapters' content")]
    available: Annotated[bool, Meta(description="sessions can be opened")]
    adapters: Annotated[tuple[AdapterListed, ...], Meta(description="as the persona's file has them")]
    problem: Annotated[str, Meta(description="why it is not available, or what is wrong with its newest file")]
    pinned: Annotated[bool, Meta(description="its KV is not evicted as long as another's can be")] = False
    prompt_tokens: Annotated[int | None, Meta(description="tokens of its fixed part; null: not counted yet")] = None


class Personas(Answer, frozen=True, kw_only=True, tag="personas"):
    """The catalog, by id."""

    personas: tuple[PersonaInfo, ...]


class PersonaAdded(Answer, frozen=True, kw_only=True, tag="persona_added"):
    """The persona can be talked to."""

    persona: PersonaInfo
    replaced: Annotated[bool, Meta(description="it took the place of another")]


class PersonaRemoved(Answer, frozen=True, kw_only=True, tag="persona_removed"):
    """The persona is out of the catalog."""

    persona: str


class AdapterScalesSet(Answer, frozen=True, kw_only=True, tag="adapter_scales_set"):
    """The adapters with the scales that the next turn will use."""

    persona: str
    session_id: str | None
    adapters: tuple[AdapterListed, ...]


class Problem(msgspec.Struct, frozen=True):
    """Something a writer should mend. ``since`` is seconds since the epoch."""

    file: str
    line: Annotated[int, Meta(description="counts from 1; 0: no line is to blame")]
    message: str
    since: Annotated[float, Meta(description="seconds since 1970")]


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The engine process. ``decode_calls`` and ``decoded_tokens`` count what was really passed to llama_decode."""

    state: Literal["starting", "ready", "failed"]
    pid: Annotated[int | None, Meta(description="process id; null while there is none")]
    restarts: Annotated[int, Meta(description="engines that were started after the first")]
    last_error: Annotated[str, Meta(description="how the last engine ended; empty: none did")]
    model: str
    model_digest: str
    architecture: str
    context_tokens: Annotated[int, Meta(description="per conversation")]
    lanes: Annotated[int, Meta(description="conversations whose KV is resident: `kv_memory_mb` allows so many")]
    lanes_bound: Annotated[int, Meta(description="lanes in use")]
    kv_bytes: Annotated[int, Meta(description="lanes x context_tokens x kv_bytes_per_token")]
    kv_bytes_per_token: int
    ram_bytes: Annotated[int, Meta(description="KV in memory beside the lanes, at most `ram_cache_mb`")]
    ram_snapshots: int
    disk_bytes: Annotated[int, Meta(description="KV in `kv_dir`, at most `disk_cache_mb`")]
    disk_snapshots: int
    kv_files_dropped: Annotated[int, Meta(description="files in `kv_dir` that were damaged")]
    evictions: Annotated[int, Meta(description="conversations that lost their lane")]
    restored_resident: Annotated[int, Meta(description="copies from lane to lane")]
    restored_ram: Annotated[int, Meta(description="copies from memory to a lane")]
    restored_disk: Annotated[int, Meta(description="files read into a lane")]
    adapters_loaded: Annotated[int, Meta(description="adapter files in memory")]
    adapter_loads: Annotated[int, Meta(description="how often one was loaded")]
    adapter_switches: Annotated[int, Meta(description="how often a lane got another adapter set (a re-reserve)")]
    decode_calls: Annotated[int, Meta(description="calls of llama_decode")]
    decoded_tokens: Annotated[int, Meta(description="tokens passed to it")]


class Status(Answer, frozen=True, kw_only=True, tag="status"):
    """How the daemon is. Byte counts are resident set sizes."""

    state: Annotated[str, Meta(description="loading, ready, failed or draining")]
    version: str
    protocol: int
    daemon_id: str
    pid: int
    uptime_s: float
    clients: Annotated[int, Meta(description="connections that said hello")]
    sessions: int
    turns_queued: int
    turns_finished: Annotated[int, Meta(description="since the start")]
    turns_failed: Annotated[int, Meta(description="since the start, ended with an error")]
    running_turn: Annotated[str | None, Meta(description="turn_id of the turn that goes first")]
    turns_active: Annotated[int, Meta(description="turns that have begun: they run, or others have precedence")]
    personas: Annotated[int, Meta(description="in the catalog")]
    personas_unavailable: Annotated[int, Meta(description="of these, how many cannot be talked to")]
    problems: Annotated[tuple[Problem, ...], Meta(description="what a writer should mend")]
    rss_bytes: Annotated[int, Meta(description="memory of both processes")]
    engine: EngineStatus


class Pong(Answer, frozen=True, kw_only=True, tag="pong"):
    """A sign of life."""


class Error(Answer, frozen=True, kw_only=True, tag="error"):
    """The end of a request that failed. ``turn_id`` is set when a turn ended with it."""

    code: Annotated[str, Meta(description="see the table of codes")]
    message: Annotated[str, Meta(description="for people")]
    fault: Annotated[str, Meta(description="request, content or runtime: who can mend it")]
    retryable: Annotated[bool, Meta(description="the same request may succeed later")]
    turn_id: str | None = None
    position: Annotated[int | None, Meta(description="with `busy`: how many turns wait already")] = None
    retry_after_ms: Annotated[float | None, Meta(description="with `busy`: when there may be room, estimated")] = None


AnyRequest = Union[
    Hello,
    OpenSession,
    CloseSession,
    StartTurn,
    CancelTurn,
    Warm,
    Prime,
    GetHistory,
    Flush,
    ListPersonas,
    AddPersona,
    RemovePersona,
    SetAdapterScales,
    GetStatus,
    Ping,
]
AnyAnswer = Union[
    Welcome,
    SessionOpened,
    SessionClosed,
    TurnStarted,
    TurnDelta,
    TurnFinished,
    TurnCancelled,
    Warmed,
    Primed,
    History,
    Flushed,
    Personas,
    PersonaAdded,
    PersonaRemoved,
    AdapterScalesSet,
    Status,
    Pong,
    Error,
]

REQUESTS: dict[str, type[Request]] = {cls.__struct_config__.tag: cls for cls in get_args(AnyRequest)}
ANSWERS: dict[str, type[Answer]] = {cls.__struct_config__.tag: cls for cls in get_args(AnyAnswer)}
