"""Stream responses from a server without pause, and print how many were lost.

usage: load.py URL MODEL SECONDS CLIENTS KEY. It runs in a pod of the cluster, without vllama.
"""

from __future__ import annotations

import collections
import http.client
import json
import sys
import threading
import time
from urllib.parse import urlsplit


def ask(url: str, model: str, key: str, seed: int) -> str:
    """Return "complete", or how a response was lost. Each has a connection of its own."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    options = {"num_predict": 8, "seed": seed}
    body = {"model": model, "raw": True, "prompt": "one, two, three,", "options": options}
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("POST", "/api/generate", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            return f"HTTP {response.status}: {response.read(200).decode(errors='replace')}"
        for line in response:
            row = json.loads(line)
            if "error" in row:
                return f"error in the stream: {row['error']}"
            if row.get("done"):
                return "complete"
        return "cut"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def main(url: str, model: str, seconds: str, clients: str, key: str = "") -> None:
    """Print the counts as one line of JSON, the losses by their first words."""
    end_s = time.monotonic() + float(seconds)
    counts: collections.Counter[str] = collections.Counter()

    def run(number: int) -> None:
        while time.monotonic() < end_s:
            how = ask(url, model, key, number)
            counts[how[:160]] += 1
            if how != "complete":
                time.sleep(0.2)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(int(clients))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
