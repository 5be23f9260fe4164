"""One batch of candidates on a GPU."""
