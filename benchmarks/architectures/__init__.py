"""Architectures for coverage.py: family -> name -> builder of a small module with random weights and example inputs."""
