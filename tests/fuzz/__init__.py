"""Hostile input for every parser that strangers reach: seeds in `corpus/`, changed by chance (`make fuzz` for long)."""
