"""A wheel and a model server in miniature: the CI jobs that they run in, and the recipe that they are served by."""
