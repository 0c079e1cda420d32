"""Say hello to one character. Start a daemon first: npc-runtime serve"""

from npc_runtime.cli.connection import connect

with connect("") as npc:
    session = npc.open_session("mira")
    print(f"{session.name}: {session.greeting}")
    print("You: Good evening.")
    print(f"{session.name}: ", end="")
    for piece in session.say("Good evening."):
        print(piece, end="", flush=True)
    print()
