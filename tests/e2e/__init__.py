"""Whole programs against each other: real clients, the daemon in its own process, simulated clusters in theirs."""
