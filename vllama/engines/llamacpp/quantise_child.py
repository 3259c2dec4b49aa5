"""Quantise one GGUF with the library that llama-cpp-python brings: SOURCE TARGET QUANT.

This is a program that the Python with the library runs; nothing imports it. It prints the library's
log, whose numbered tensors are the progress, and exits with 1 if the library refuses.
"""

import ctypes
import sys


def main(source: str, target: str, quant: str) -> int:
    """Return the exit code."""
    import llama_cpp

    number = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{quant}", None)
    if quant == "F32":
        number = llama_cpp.LLAMA_FTYPE_ALL_F32
    if number is None:
        sys.stderr.write(f"ValueError: this llama.cpp cannot make {quant}\n")
        return 1

    def log(level: int, text: bytes, data: ctypes.c_void_p) -> None:
        sys.stderr.write(text.decode("utf-8", "replace"))
        sys.stderr.flush()

    callback = llama_cpp.llama_log_callback(log)  # must outlive the calls below
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = number
    return int(
        llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
