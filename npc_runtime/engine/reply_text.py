"""From token bytes to the text that is said.

Rules: every piece that is let out is whole characters and final; all pieces together are the reply's text. Text that
may still become a stop (or the begin of the player's own line) is held back until that is decided. White space at both
ends and the character's own name in front (``Mira: …``) are not part of what is said.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import regex

_GENERIC_NAMES = ("Player", "User")
_MARKUP = r"[\s*_>\"'#\-\[(]*"


class ReplyText:
    """Assembles one reply. After ``feed`` or ``finish``, ``stopped`` tells whether a stop was met."""

    def __init__(self, stops: Sequence[str], player: str, character: str) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = regex.compile("|".join([*map(regex.escape, stops), *_player_lines(player)]))
        self._own_name = regex.compile(rf"(?i:[*_\s]*{regex.escape(character)}[*_\s]*[:：][*_]*\s*)")
        self._raw = ""
        self._start: int | None = None
        self._end: int | None = None
        self._said = 0
        self._renamed = False

    @property
    def stopped(self) -> bool:
        """A stop string or the player's line was met; nothing after it is said."""
        return self._end is not None

    @property
    def text(self) -> str:
        """What has been let out so far."""
        return "" if self._start is None else self._raw[self._start : self._start + self._said]

    def feed(self, piece: bytes) -> str:
        """Add a token's bytes; the text that can be let out now (often empty while something is held back)."""
        self._raw += self._decoder.decode(piece)
        return self._let_out(final=False)

    def finish(self) -> str:
        """The reply is over: the rest of what may be said. An incomplete character at the end is dropped."""
        return self._let_out(final=True)

    def settle(self, tokens: Sequence[int], pieces: Sequence[bytes]) -> tuple[tuple[int, ...], str]:
        """How the next prompt repeats this reply: the leading tokens that are part of it, and the text after them."""
        if self._renamed or self._start is None or not self.text:
            return (), self.text
        wanted = (self._raw[: self._start + self._said] if self.stopped else self._raw).encode()
        taken, best = 0, (0, 0)
        for count, piece in enumerate(pieces, start=1):
            if wanted[taken : taken + len(piece)] != piece:
                break
            taken += len(piece)
            if _is_text(wanted[taken:]):
                best = (count, taken)
        return tuple(tokens[: best[0]]), wanted[best[1] :].decode("utf-8", "replace")

    def _let_out(self, *, final: bool) -> str:
        if self._start is None and not self._find_start(final):
            return ""
        assert self._start is not None
        text = self._raw[self._start :]
        limit = self._limit(text, final)
        piece = text[self._said : limit].rstrip() if limit > self._said else ""
        self._said += len(piece)
        return piece

    def _find_start(self, final: bool) -> bool:
        """Skip white space and the character's own name; False while it is not clear where the text begins."""
        match = self._own_name.match(self._raw, partial=not final)
        if match and match.partial and match.end() > 0 and not self._raw.isspace():
            return False
        lead = match.end() if match and not match.partial else len(self._raw) - len(self._raw.lstrip())
        self._renamed = bool(match and not match.partial)
        if lead >= len(self._raw):
            return False
        self._start = lead
        return True

    def _limit(self, text: str, final: bool) -> int:
        """Up to where ``text`` may be let out."""
        if self._end is not None:
            return self._end
        match = self._stop.search(text, self._said, partial=not final)
        if match is None:
            return len(text)
        if not match.partial:
            self._end = match.start()
        return int(match.start())


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _player_lines(player: str) -> list[str]:
    """Patterns of a line in which the player's own turn begins.

    With a colon after the name in any dress. Without one only inside a reply, for names of three letters and more, and
    where a sentence about the player follows (``Player draws``) or nothing: ``Anna, come!`` is said to Anna.
    """
    names = "|".join(regex.escape(name) for name in dict.fromkeys((player, *_GENERIC_NAMES)) if name.strip())
    lines = [rf"(?i:(?:\A|\n){_MARKUP}(?:{names})[*_\s\])\"']*[:：])"]
    if len(player.strip()) >= 3:
        lines.append(rf"(?i:\n[\s*_>]*{regex.escape(player)}[*_]*)(?:[ \t]+[a-z]|[ \t*_]*\n)")
    return lines
