"""Simulated containers: a shell, its commands and file system, and listening ports."""
