"""Identity: authentication, authorization, impersonation, and the headers that carry a user to a cluster.

An attacker controls every header of a request. Any header that could be an identity to a server behind the proxy is
removed unless the cluster's `identity` passes exactly this header on.
"""
