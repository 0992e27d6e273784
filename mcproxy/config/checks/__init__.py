"""Checks across sections, run after each section has been read."""
