"""What runs inside a simulated container: a shell, its commands and file system, and listening ports."""
