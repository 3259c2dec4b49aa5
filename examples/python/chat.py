"""Start a server for one model, ask it with the official OpenAI client, and end it.

pip install -e .
pip install openai
python chat.py smollm2:135m
"""

import sys

from openai import OpenAI

import vllama


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2:135m"
    with vllama.Server(model, on_line=print) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="unused")
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Why is the sky blue? One sentence."}],
            stream=True,
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
