"""Compare downloads by vllama with those by `curl`, on loopback from nginx, in turns.

    python -m bench.pull [--folder DIR] [--mib 1024] [--rounds 7] [--cap 25]

Both write the same file to DIR (use a tmpfs to measure the programs and not the disk). vllama does
a complete download: the hub's API, ranges, SHA-256, the layout of the cache. --cap limits each
connection to that many MB/s. Prints the medians of the ratios of all rounds; CPU seconds are those
of the receiving program and its children.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hub import StandInHub
from tests.ports import free_port
from vllama.models.download.fetch import fetch_variant
from vllama.models.settings import ModelsSettings
from vllama.models.sources.hf import HuggingFace

CONFIG = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on;
  client_body_temp_path {folder}/t; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t;
  uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
  server {{ listen 127.0.0.1:{port}; location / {{ root {folder}; limit_rate {rate}; }} }}
}}
"""


@contextmanager
def sender(folder: Path, cap: float | None) -> Iterator[str]:
    """Run nginx over `folder`; `cap` MB/s for each connection. Yield its address."""
    port = free_port()
    rate = f"{int(cap * 1000)}k" if cap else "0"
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, rate=rate))
    process = subprocess.Popen(["nginx", "-c", str(config), "-e", str(folder / "errors")])
    try:
        while subprocess.run(
            ["curl", "-s", "-o", os.devnull, f"http://127.0.0.1:{port}/"]
        ).returncode:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def timed(work: Callable[[], object], whose: int) -> tuple[float, float]:
    """Return the wall time and the CPU time in seconds."""
    before, begin = resource.getrusage(whose), time.monotonic()
    work()
    took, after = time.monotonic() - begin, resource.getrusage(whose)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu


def measure(folder: Path, mib: int, rounds: int, cap: float | None) -> None:
    source = folder / "m.gguf"
    with source.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1024 * 1024))
    with StandInHub() as hub, sender(folder, cap) as address:
        repo = hub.add_repo("o/r", {"m.gguf": source})
        sha = repo.snapshots[repo.refs["main"]]["m.gguf"].sha256
        (folder / "repos").mkdir()
        source.rename(folder / "repos" / sha)
        hub.cdn_url = address
        cache, target = folder / "cache", folder / "curl"

        def pull(connections: int) -> tuple[float, float]:
            settings = ModelsSettings(
                hf_cache_dir=cache,
                data_dir=folder / "data",
                hf_endpoint=hub.url,
                download_connections=connections,
            )
            hf = HuggingFace(settings)
            found = hf.resolve("o/r")
            variant, stop = found.variants[0], threading.Event()
            took = timed(
                lambda: fetch_variant(hf, settings, found, variant, lambda event: None, stop),
                resource.RUSAGE_SELF,
            )
            shutil.rmtree(cache)
            return took

        def curl() -> tuple[float, float]:
            command = ["curl", "-sf", "-o", str(target), f"{address}/repos/{sha}"]
            took = timed(lambda: subprocess.run(command, check=True), resource.RUSAGE_CHILDREN)
            target.unlink()
            return took

        turns: dict[str, Callable[[], tuple[float, float]]] = {
            "curl": curl,
            "vllama, 1 connection": lambda: pull(1),
            "vllama, 4 connections": lambda: pull(4),
        }
        seen = [{name: turn() for name, turn in turns.items()} for _ in range(rounds + 1)][1:]
    for name in turns:
        speeds = [one["curl"][0] / one[name][0] for one in seen]
        walls, cpus = zip(*(one[name] for one in seen), strict=True)
        print(
            f"{name:<22} {statistics.median(speeds):.2f} x curl's throughput "
            f"[{min(speeds):.2f} … {max(speeds):.2f}]; best {mib / min(walls):.0f} MiB/s, "
            f"median {statistics.median(cpus):.2f} s CPU"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write (a temporary folder)")
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cap", type=float, help="MB/s for each connection")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        folder.chmod(0o755)
        measure(folder, options.mib, options.rounds, options.cap)


if __name__ == "__main__":
    main()
