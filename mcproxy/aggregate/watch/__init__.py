"""Watches on an aggregate: the changes of all members' stores of a resource, as one stream for each client."""
