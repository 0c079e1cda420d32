"""A character joins while the game runs, and goes again. Start a daemon first: npc-runtime serve"""

import sys

from npc_runtime.client import Client
from npc_runtime.errors import UnknownPersona

GUARD = """
schema: npc/1
id: example-guard
name: Gate Guard
summary: a tired guard at the marsh gate, who speaks like everyone in the marsh
greeting: Halt. Who goes there?
adapters:
  - name: marsh          # an adapter that is in the folder already
    scale: 0.8
"""

with Client.from_ready_file(sys.argv[1]) if len(sys.argv) > 1 else Client.local() as npc:
    info = npc.add_persona(GUARD, replace=True)
    print(f"{info.name} is here, with {', '.join(f'{a.name} × {a.scale:g}' for a in info.adapters)}")
    session = npc.open_session(info.id)
    print(f"{session.name}: {session.greeting}")
    print(f"{session.name}: {session.say('A friend. May I pass?').wait().text}")
    npc.set_adapter_scales({"marsh": 0.3}, session_id=session.id)
    finished = session.say("Why so formal now?").wait()
    print(f"{session.name}: {finished.text}   [marsh × {finished.adapters[0].scale:g}]")
    npc.remove_persona(info.id)
    try:
        npc.open_session(info.id)
    except UnknownPersona as error:
        print(f"Gone again: {error}")
