"""Ray as the source of nodes: it joins machines, starts a server on each, and sees them go.

It is on no token's way. The head runs one process, `targets.ray.head`, which is the only one that
knows Ray's library; it writes the addresses of the servers to a file whenever they change. A
machine that joins runs Ray alone, until its head asks it for a server.

Whoever has the token can run code on every machine of a Ray cluster, and Ray does not encrypt.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from vllama.base import private
from vllama.base.errors import ConfigError
from vllama.supervise.process import Child

log = logging.getLogger(__name__)

TOKEN, LOG = "ray.token", "ray.log"
"""The names of files in the head's folder of a cluster."""
PORT = 6379
PORTS = {"node-manager-port": 6380, "object-manager-port": 6381, "runtime-env-agent-port": 6382}
WORKER_PORTS = {"min-worker-port": 6400, "max-worker-port": 6499}
"""All that Ray listens on, so that a firewall can let it through; the servers have their own."""
OBJECT_STORE_BYTES = 80_000_000
"""The least that Ray takes; nothing is put there."""
ENVIRON = {
    "RAY_AUTH_MODE": "token",
    # a machine that is off, or a cable that is cut, is noticed within 8 s instead of a minute
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # after which machines leave a dead head
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or the servers would see no GPU
}
LOOK_EVERY_S = 0.5
AGAIN_S = 3.0
KEPT_S = 120.0
KILL_LIMIT_S = 5.0


class Found(msgspec.Struct):
    """What the head's process has found: the URLs of servers, and why machines have none."""

    urls: list[str] = []
    failed: dict[str, str] = {}


def check_ray(doing: str) -> None:
    """Raise ConfigError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"cannot {doing}: Ray is not installed", hint="pip install 'ray>=2.52'")


def make_token(folder: Path) -> None:
    """Make the token of a new cluster, unless there is one."""
    path = folder / TOKEN
    if not path.exists():
        private.make_folder(folder)
        private.replace(path, f"{secrets.token_hex(32)}\n")


def make_start(own: str, head: str | None = None) -> list[str]:
    """Return the command that runs Ray on this machine: as the head, or joining `head`."""
    given = PORTS | WORKER_PORTS | {"object-store-memory": OBJECT_STORE_BYTES}
    place = ("--head", f"--port={PORT}", "--include-dashboard=false") if head is None else ()
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
        *(place or (f"--address={head}",)),
        *(f"--{name}={value}" for name, value in given.items()),
        *(f"--node-ip-address={own}", "--disable-usage-stats", "--include-log-monitor=false"),
    ]


def make_environ(environ: Mapping[str, str], token: Path) -> dict[str, str]:
    """Return the environment of a process of Ray's; the token is not in it, nor in arguments."""
    return {**environ, **ENVIRON, "RAY_AUTH_TOKEN_PATH": str(token)}


async def find_nodes(
    use: Callable[[Iterable[str], Collection[str]], None], *, address: str | None, own: str,
    folder: Path, key: Path, environ: Mapping[str, str],
) -> None:  # fmt: skip
    """Keep the head's process, and tell `use` of the servers' URLs, until cancelled.

    `address` is that of a Ray which somebody else runs. When the process ends, it is started again.
    A server that is gone counts as a lost node for `KEPT_S`: its models are not unknown at once.
    While Ray is started again nobody knows which are gone.
    """
    found, ray_log = folder / "nodes.json", folder / LOG
    argv = [sys.executable, "-m", "vllama.targets.ray.head", own, str(key), str(found)]
    used: dict[str, float] = {}  # when each URL was found last
    failed: dict[str, str] = {}
    while True:
        found.unlink(missing_ok=True)
        child = await Child.spawn(
            [*argv, address or ""], env=make_environ(environ, folder / TOKEN), log_path=ray_log
        )
        try:
            while not child.exited.done():
                now = _read(found) or Found(list(used))
                used |= dict.fromkeys(now.urls, time.monotonic())
                used = {url: at_s for url, at_s in used.items() if at_s > time.monotonic() - KEPT_S}
                use(used, used.keys() - set(now.urls))
                for name, reason in now.failed.items() - failed.items():
                    log.warning("the machine %s has no server: %s", name, reason)
                failed = now.failed
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await child.kill_tree(KILL_LIMIT_S)
        log.warning("Ray has ended, and is started again; its log is %s", ray_log)
        await asyncio.sleep(AGAIN_S)


def _read(path: Path) -> Found | None:
    """Read what the head's process has found, None if it has not looked yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Found)
    except FileNotFoundError:
        return None


def explain_end(output: str) -> tuple[str, str]:
    """Return why Ray could not join a cluster, and what to do, by what it has printed."""
    if "AuthenticationError" in output:
        return "the token is not that of this cluster", "copy the file that the head names"
    if versions := re.findall(r"^ +(?:Ray|Python): (\S+)$", output, re.MULTILINE):
        theirs, ours = (
            f"Ray {ray} and Python {python}" for ray, python in (versions[:2], versions[2:])
        )
        return f"the head has {theirs}, this machine has {ours}", "install the head's versions"
    last = output.strip().rpartition("\n")[2].rpartition(" -- ")[2]
    return (
        f"Ray has ended: {last or 'it has printed nothing'}",
        f"ports {PORT} to {WORKER_PORTS['max-worker-port']} must be open between the machines",
    )
