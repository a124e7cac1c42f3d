"""pytest's side of testkit.pairwise."""
