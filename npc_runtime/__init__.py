"""NPC Runtime: a local daemon that gives game characters a voice of their own.

One small base model, one catalog of personas, one set of LoRA adapters per persona. See ``docs/architecture.md``.
"""

__version__ = "0.1.0"
