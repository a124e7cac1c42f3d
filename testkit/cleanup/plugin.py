"""pytest's side of testkit.cleanup."""
