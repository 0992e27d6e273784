"""The controller of exports: reads the caches, computes the desired state and writes the differences."""
