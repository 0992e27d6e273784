"""The roles that an API server needs, for an administrator to review and apply.

The design proposal "Aggregated API Servers" has an API server publish them at `/bootstrap/<group>`, since one that
could register roles by itself could destroy the cluster. What it publishes is hostile: only what stays within its own
group is taken. Where it publishes none they are made from its discovery.
"""
