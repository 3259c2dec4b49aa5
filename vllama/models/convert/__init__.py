"""Safetensors → GGUF, and a GGUF → a smaller one: the last resort where nobody has made one.

The work is done by official programs in processes of their own: llama.cpp's converter, in an
environment made for it, and llama.cpp's quantiser, which comes with the engine.
"""
