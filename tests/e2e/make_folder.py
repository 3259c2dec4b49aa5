"""Make a Hugging Face folder of a GGUF: `make_folder.py GGUF OUT [DTYPE]`.

Run with the Python of an environment that has transformers, torch, gguf and accelerate; it is not
imported by the tests.
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

source, out = Path(sys.argv[1]), Path(sys.argv[2])
(dtype,) = sys.argv[3:] or ["bfloat16"]
tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
model = AutoModelForCausalLM.from_pretrained(
    source.parent,
    gguf_file=source.name,
    dtype=getattr(torch, dtype),
    quantization_config=GgufConfig(dequantize=True),
)
# else it is taken for a quantized model, which cannot be saved
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.hf_quantizer = None
model.is_quantized = False
model.save_pretrained(out)
tokenizer.save_pretrained(out)
