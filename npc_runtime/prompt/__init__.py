"""From personas and conversations to prompt segments. Pure: no model, no files."""

from npc_runtime.prompt.conversation import Call, Conversation, Exchange
from npc_runtime.prompt.persona_text import greeting_text, system_text
from npc_runtime.prompt.template import JinjaTemplate, PromptTemplate, Segment, TranscriptTemplate
from npc_runtime.prompt.window import fit

__all__ = [
    "Call",
    "Conversation",
    "Exchange",
    "JinjaTemplate",
    "PromptTemplate",
    "Segment",
    "TranscriptTemplate",
    "fit",
    "greeting_text",
    "system_text",
]
