"""Children of the SDK: steps that need a compiler run in one, with limits; none outlives its parent."""
