"""The rules of the API that need no state and no HTTP: Status errors, resources, schemas, selectors, list options."""
