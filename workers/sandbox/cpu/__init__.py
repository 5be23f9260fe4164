"""One batch of candidates on a CPU."""
