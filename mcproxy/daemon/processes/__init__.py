"""A daemon of several processes: the supervisor, its workers, and the keeper of aggregates.

A daemon of one process imports nothing of it.
"""
