"""Safetensors → GGUF, and a GGUF → a smaller one, for models that nobody has published so.

Official programs do the work in processes of their own: llama.cpp's converter, in an environment
made for it, and llama.cpp's quantizer, which comes with the engine.
"""
