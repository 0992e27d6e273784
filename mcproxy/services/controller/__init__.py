"""The controller of exports: reads the caches, computes the desired state, and has the differences written."""
