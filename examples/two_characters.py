"""Two characters talk to each other: what one says is the other's next line. Start a daemon first: npc-runtime serve"""

import sys

from npc_runtime.client import Client

with Client.from_ready_file(sys.argv[1]) if len(sys.argv) > 1 else Client.local() as npc:
    # Each knows the other as its "player", so each conversation is an ordinary one.
    mira = npc.open_session("mira", player="Osric Vaune")
    osric = npc.open_session("osric", player="Mira Quill")
    line = "Good evening to thee, ferrywoman. How is the river tonight?"
    print(f"{osric.name}: {line}")
    for speaker in (mira, osric, mira, osric):
        reply = speaker.say(line, max_tokens=60)
        print(f"{speaker.name}: ", end="")
        for piece in reply:
            print(piece, end="", flush=True)
        print(f"   [{', '.join(f'{use.name} × {use.scale:g}' for use in reply.finished.adapters)}]")
        line = reply.finished.text
