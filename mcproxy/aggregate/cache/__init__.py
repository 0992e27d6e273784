"""Caches of members' objects: decoded once to bytes that are served as they are, with their recent history."""
