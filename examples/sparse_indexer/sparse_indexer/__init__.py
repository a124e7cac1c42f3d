"""A sparse attention indexer in miniature: which keys a query attends to, by the fastest ops that a machine has."""
