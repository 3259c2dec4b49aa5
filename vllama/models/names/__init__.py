"""The names of models, quantizations and formats."""
