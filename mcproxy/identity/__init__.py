"""Identity: authentication, authorization, impersonation, and the headers that carry a user to a cluster.

An attacker controls every header of a request. Every header that an upstream server could treat as an identity is
removed, unless the cluster's `identity` setting passes exactly this header on.
"""
