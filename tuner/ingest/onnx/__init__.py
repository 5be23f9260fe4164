"""Reading ONNX graphs into Relax, node by node; see walk.py. Runs in the child (tuner/ingest/child.py)."""
