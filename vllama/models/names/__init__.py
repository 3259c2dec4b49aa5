"""The names of models, quantisations and formats."""
