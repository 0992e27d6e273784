"""Watches on an aggregate: each client gets the changes of all members' stores of a resource as one stream."""
