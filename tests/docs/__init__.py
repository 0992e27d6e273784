"""README.md and the pages in docs/: their commands run, their examples are valid, their links lead somewhere."""
