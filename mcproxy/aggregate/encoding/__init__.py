"""What makes bytes of cached objects, in gets, lists and watches: JSON, PartialObjectMetadata, Table, YAML."""
