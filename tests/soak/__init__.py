"""The reliability suite: load, faults by chance, and the invariants that hold all the time (`make soak`)."""
