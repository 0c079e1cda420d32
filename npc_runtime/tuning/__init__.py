"""``npc-runtime tune``: what makes the engine fast on this machine, measured; and faster files of the same base model.

llama.cpp ends its process when an assertion fails, and some settings are read at a process's start only. So everything
that touches a model runs in child processes (``child.py``, asked through ``worker.py``); the search itself
(``search.py``) knows no model at all.
"""
