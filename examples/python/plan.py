"""Say how a model would be served here, then download it if it is not on this disk.

python plan.py Qwen/Qwen3-0.6B
"""

import sys

from vllama.api import plan, pull, resolve
from vllama.base.errors import VllamaError


def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2:135m"
    try:
        found = resolve(model)
        decided = plan(model)
        size = f"{found.bundle.size_bytes:,} bytes"
        where = "on this disk" if found.is_here else f"{size} to download"
        print(f"{found.bundle.name}: {where}")
        context = decided.settings.context_length
        print(f"{decided.engine}, {context} tokens, {decided.memory.total_bytes:,} bytes of memory")
        if not found.is_here:
            print(pull(model, progress=lambda event: print(event.status)).path)
    except VllamaError as error:
        print(error.sentence())
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
