"""Leader election by coordination.k8s.io Leases, with client-go's times and semantics (tools/leaderelection)."""
