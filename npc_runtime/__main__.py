"""``python -m npc_runtime`` is the same as the command ``npc-runtime``."""

from npc_runtime.cli.app import main

main()
