"""PyTorch's operators as the importer takes them: decompositions, recurrent layers, ties of equal elements."""
