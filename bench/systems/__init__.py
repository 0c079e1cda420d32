"""What is compared: this runtime, its peers, and the bare loop, each behind the same two calls."""

from bench.systems.system import Common, Conversation, FlashAttention, NotAvailable, Sampled, System

__all__ = ["Common", "Conversation", "FlashAttention", "NotAvailable", "Sampled", "System"]
