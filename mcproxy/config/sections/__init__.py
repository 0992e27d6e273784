"""Builds the model from the marked nodes of the file, with one module per section."""
