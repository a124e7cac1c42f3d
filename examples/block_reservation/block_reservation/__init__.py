"""Blocks of a KV cache in miniature: what decode steps take, and what a warm-up step predicts that they will."""
