"""A daemon of several processes: the supervisor, its workers, and the keeper of aggregates.

A daemon of one process does not import this package.
"""
