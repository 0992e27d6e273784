"""Checks of what sections must be to one another."""
