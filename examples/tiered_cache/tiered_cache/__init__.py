"""A prefix cache in miniature with a fast and a slow tier, and a scheduler that waits for promotions between them."""
