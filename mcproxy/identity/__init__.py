"""Who calls, and how a cluster is told.

What an attacker controls: every header of a request. A name that could mean an identity to any server behind is taken
away unless the cluster's way of being told (`identity`) says that exactly this header passes.
"""
