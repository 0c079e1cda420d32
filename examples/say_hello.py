"""Say hello to one character. Start a daemon first: npc-runtime serve"""

import sys

from npc_runtime.client import Client

with Client.from_ready_file(sys.argv[1]) if len(sys.argv) > 1 else Client.local() as npc:
    session = npc.open_session("mira", player="Traveller")
    print(f"{session.name}: {session.greeting}")
    print("Traveller: Good evening.")
    print(f"{session.name}: ", end="")
    for piece in session.say("Good evening."):
        print(piece, end="", flush=True)
    print()
