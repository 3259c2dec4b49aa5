"""Chat templates: Ollama's in Go's language, and Jinja in worker processes."""
