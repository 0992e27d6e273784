"""The sections of the file, from marked nodes to the model, a module for each."""
