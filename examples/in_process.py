"""Two characters in one Python process: no daemon, no socket. Run from the repository: python examples/in_process.py"""

from npc_runtime import Runtime

with Runtime(personas_dir="personas", adapters_dir="adapters") as runtime:
    for name in ("mira", "osric"):
        session = runtime.open_session(name, player="Traveller")
        session.warm()
        session.prime("Can you take me across")
        print(f"{session.name}: ", end="")
        for piece in session.say("Can you take me across the river tonight?"):
            print(piece, end="", flush=True)
        print()
