"""A daemon of several processes: the supervisor, its workers, and the keeper of aggregates.

Nothing here is imported by a daemon of one process.
"""
