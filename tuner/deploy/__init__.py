"""From a model and the best known traces to a compiled model, and that model beside its framework."""
