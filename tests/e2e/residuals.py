"""The residual stream by transformers' own hooks: `residuals.py FOLDER FILE.json OUT.safetensors`.

FILE has a list of lists of tokens. Run with the Python of an environment that has transformers and
torch; it is not imported by the tests. OUT has a tensor (layer, token, value) for each list, by its
number, and in the metadata the text of each.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, asked, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
kept: list[torch.Tensor] = []


def keep(module, args, output):
    """Keep what a layer returns."""
    kept.append((output[0] if isinstance(output, tuple) else output).squeeze(0))


for layer in model.model.layers:
    layer.register_forward_hook(keep)
tensors, texts = {}, {}
for number, tokens in enumerate(json.loads(Path(asked).read_text())):
    kept.clear()
    with torch.no_grad():
        model(torch.tensor([tokens]))
    tensors[str(number)] = torch.stack(kept)
    texts[str(number)] = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
save_file(tensors, out, texts)
