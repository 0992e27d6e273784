"""Cached objects as clients ask for them: whole, as a Table, or as PartialObjectMetadata; from bytes, without I/O."""
