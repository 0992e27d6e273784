"""Identity: authentication, authorization, impersonation, and the headers that carry a user to a cluster.

An attacker controls every header of a request. One that could mean an identity to any server behind is removed unless
the cluster's `identity` says that exactly this header passes.
"""
