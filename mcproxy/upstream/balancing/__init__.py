"""Load balancing: which endpoint of a cluster, or of a dispatch policy, gets a request."""
