"""The wire types: what crosses a process border. Owned here, imported by every part, import nothing of ours but errors."""
