"""From a conversation to prompt segments, in the form that a base model was trained on.

The model's own Jinja chat template is rendered (in a sandbox) with a placeholder for every text and then split at the
placeholders. So the template's scaffolding and the texts stay apart: only scaffolding may become control tokens, and a
player who types ``<|im_end|>`` has typed eight ordinary characters. Models without a chat template get a plain
transcript.

Segments also carry where decode calls begin. A block ends after the persona's fixed part, after every reply and
before every player line; within a block tokens are decoded in chunks of a fixed size. So the same conversation is
always computed by the same calls, and what stands before the next line can be computed before anybody speaks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from npc_runtime.prompt.conversation import Call, Conversation, Exchange

APPROACH = "(The player walks up to you.)"
"""Stands in for the player's line before a greeting: many templates want user and assistant in strict turn."""

_MARK = "\u241e{}\u241e"


@dataclass(frozen=True)
class Segment:
    """A piece of a prompt.

    ``special``: scaffolding of the template, in which control tokens are meant. ``tokens``: ids that are used as they
    are and were decoded one by one (a reply); ``text`` follows them. ``ends_block``: a decode call ends here.
    ``begins_line``: a player's line, with which a decode call begins; ``cuts`` and ``primed`` tell of the calls in
    which it was computed (see :class:`Exchange` and :class:`Conversation`).
    """

    text: str
    special: bool = False
    tokens: tuple[int, ...] = ()
    ends_block: bool = False
    begins_line: bool = False
    cuts: tuple[int, ...] = ()
    primed: tuple[Call, ...] = ()


class PromptTemplate(ABC):
    """How one base model wants a conversation written. ``stops`` end a reply beside the model's own end tokens."""

    stops: tuple[str, ...] = ()

    @abstractmethod
    def render(self, conversation: Conversation) -> list[Segment]:
        """The segments of the prompt, up to where the reply begins."""


class TranscriptTemplate(PromptTemplate):
    """For models without a chat template: ``Name: text`` lines. A reply is one line."""

    stops = ("\n",)

    def render(self, conversation: Conversation) -> list[Segment]:
        """See :meth:`PromptTemplate.render`."""
        c = _in_lines(conversation)
        opening = f"\n{c.player}: {APPROACH}\n{c.character}: {c.greeting}" if c.greeting else ""
        segments = [Segment(f"{c.system}\n{opening}", ends_block=True)]
        for exchange in c.exchanges:
            segments.append(Segment(f"\n{c.player}:"))
            segments.append(Segment(f" {exchange.player}", begins_line=True, cuts=exchange.cuts))
            segments.append(Segment(f"\n{c.character}:"))
            segments.append(_reply(exchange, lead=" "))
        segments.append(Segment(f"\n{c.player}:"))
        segments.append(Segment(f" {c.line}", begins_line=True, primed=c.primed))
        segments.append(Segment(f"\n{c.character}:"))
        return segments


class JinjaTemplate(PromptTemplate):
    """The chat template of the model file.

    Raises ValueError where the template can render neither form of a conversation (with a system message, or with
    the system text in front of the first player line).
    """

    def __init__(self, source: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals.update(raise_exception=_raise, strftime_now=lambda _format: "")
        self._eos = eos
        self.wants_bos = "bos_token" in source
        try:
            self._template = environment.from_string(source)
            self._has_system_role = self._renders(system_role=True)
            usable = self._has_system_role or self._renders(system_role=False)
        except jinja2.TemplateError as error:
            raise ValueError(f"the model's chat template is not usable: {error}") from None
        if not usable:
            raise ValueError("the model's chat template renders neither a system message nor a plain exchange")

    def render(self, conversation: Conversation) -> list[Segment]:
        """See :meth:`PromptTemplate.render`."""
        contents = _Contents()
        rendered = self._render(_messages(conversation, contents, self._has_system_role))
        return contents.split(rendered)

    def _render(self, messages: list[dict[str, str]]) -> str:
        # No bos_token: the beginning-of-sequence token is added once, as an id, by the tokenising side.
        return self._template.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token=self._eos)

    def _renders(self, *, system_role: bool) -> bool:
        conversation = Conversation(
            system="s", greeting="g", exchanges=(Exchange("p", "r"),), line="l", player="P", character="C"
        )
        contents = _Contents()
        try:
            rendered = self._render(_messages(conversation, contents, system_role))
        except jinja2.TemplateError:
            return False
        return contents.all_in(rendered)


class _Contents:
    """The texts of a conversation and their placeholders, in order."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def add(self, segment: Segment) -> str:
        self._segments.append(segment)
        return _MARK.format(len(self._segments) - 1)

    def all_in(self, rendered: str) -> bool:
        position = 0
        for index in range(len(self._segments)):
            mark = _MARK.format(index)
            found = rendered.find(mark, position)
            if found < 0 or rendered.count(mark) != 1:
                return False
            position = found + len(mark)
        return True

    def split(self, rendered: str) -> list[Segment]:
        scaffolds: list[str] = []
        position = 0
        for index in range(len(self._segments)):
            mark = _MARK.format(index)
            found = rendered.index(mark, position)
            scaffolds.append(rendered[position:found])
            position = found + len(mark)
        rendered = rendered[position:]
        segments: list[Segment] = []
        for scaffold, content in zip(scaffolds, self._segments, strict=True):
            # A reply's tokens were generated right after the prompt's own end. Some templates write something else in
            # front of a past reply (a blank, say); with it, no prompt would begin with the one before.
            before = rendered if content.tokens else scaffold
            segments += [Segment(before, special=True)] if before else []
            segments.append(content)
        return [*segments, Segment(rendered, special=True)] if rendered else segments


def _messages(c: Conversation, contents: _Contents, system_role: bool) -> list[dict[str, str]]:
    system = contents.add(Segment(c.system, ends_block=not c.greeting))
    messages: list[dict[str, str]] = [_message("system", system)] if system_role else []
    lead = "" if system_role else system + "\n\n"
    if c.greeting:
        messages.append(_message("user", lead + contents.add(Segment(APPROACH))))
        messages.append(_message("assistant", contents.add(Segment(c.greeting, ends_block=True))))
        lead = ""
    for exchange in c.exchanges:
        messages.append(_message("user", lead + contents.add(_line(exchange))))
        messages.append(_message("assistant", contents.add(_reply(exchange, lead=""))))
        lead = ""
    messages.append(_message("user", lead + contents.add(Segment(c.line, begins_line=True, primed=c.primed))))
    return messages


def _in_lines(c: Conversation) -> Conversation:
    """The conversation with every player line as one line: in a transcript a line break begins another's turn."""
    return msgspec.structs.replace(
        c,
        line=" ".join(c.line.splitlines()),
        player=" ".join(c.player.splitlines()),
        exchanges=tuple(
            msgspec.structs.replace(exchange, player=" ".join(exchange.player.splitlines())) for exchange in c.exchanges
        ),
    )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _line(exchange: Exchange) -> Segment:
    return Segment(exchange.player, begins_line=True, cuts=exchange.cuts)


def _reply(exchange: Exchange, lead: str) -> Segment:
    if exchange.tokens:
        return Segment(exchange.rest, tokens=exchange.tokens, ends_block=True)
    return Segment(lead + exchange.reply, ends_block=True)


def _raise(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))
