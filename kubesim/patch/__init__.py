"""PATCH: JSON Patch, JSON Merge Patch, strategic merge patch and server-side apply, with managedFields."""
