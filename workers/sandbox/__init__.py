"""Disposable processes in which candidates are built, checked and timed."""
