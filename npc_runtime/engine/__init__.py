"""The engine: turns, lanes, loaded adapters. Runs in a process of its own, or in-process in tests and tools."""
