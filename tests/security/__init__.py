"""Attacks that once worked, or would have."""
