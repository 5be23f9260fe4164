"""The search: which candidates are measured next, ranked by the cost model."""
