"""Encoders of cached objects for gets, lists and watches: JSON, PartialObjectMetadata, Table, YAML."""
