"""`pitchpipe.tune(model, inputs)`: one call from a model to a faster one, and the report of it."""
