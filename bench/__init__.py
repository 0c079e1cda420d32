"""Benchmarks: the same game played on this runtime, on its peers and on a bare loop. Run: ``scripts/bench``."""
