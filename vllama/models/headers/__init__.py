"""What a model's own files tell: GGUF, safetensors, chat templates."""
