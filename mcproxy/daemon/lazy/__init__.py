"""Parts of a process that are made, and their modules imported, when a configuration first needs them."""
