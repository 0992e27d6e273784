"""Reflectors keep the stores of an aggregate equal to the collections of its members, as client-go's reflectors do."""
