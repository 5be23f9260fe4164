"""Graph preparation: an ingested Relax module becomes calls of fused tensor functions, one pass a file; see prepare.py."""
