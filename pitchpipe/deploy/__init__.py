"""Compiled models and what they are made by: artifacts, proof runs, identities, packs, lock files, coverage."""
