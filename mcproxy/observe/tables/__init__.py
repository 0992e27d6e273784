"""The tables of the status document, which `mcproxy status`, `mcproxy top` and the status page render."""
