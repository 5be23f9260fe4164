"""A model on this machine: its graph and weights, what its framework computes, and where ours differs."""
