"""vllama: Ollama's API in front of the official vLLM and llama.cpp servers."""

__version__ = "0.1.0"
