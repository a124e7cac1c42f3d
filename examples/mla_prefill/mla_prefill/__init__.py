"""Prefill of multi-head latent attention in miniature: a backend, its metadata builder, an fp8 path."""
