"""Readers of a model's own files: GGUF, safetensors, chat templates."""
