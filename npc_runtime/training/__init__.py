"""Training a persona's voice: dialogue lines in, LoRA adapter (GGUF) out, and the proof that it speaks as it should.

Nothing here is needed to play. torch, transformers, peft and matplotlib (extra ``[train]``) are imported only inside
the functions that use them.
"""
