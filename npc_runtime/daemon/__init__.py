"""The daemon: sockets, sessions, turns, catalog, and the engine process it looks after."""
