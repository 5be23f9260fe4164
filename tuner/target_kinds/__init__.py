"""Kinds of targets, a folder each: implementations of pitchpipe/target_kind.py, found by name (entry points)."""
