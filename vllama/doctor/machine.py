"""Checks of the hardware: GPUs and drivers, CUDA versions, memory and the processes that use it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from vllama.base.errors import SourceError, describe_connection_error
from vllama.base.units import format_bytes_binary as size
from vllama.doctor.check import Finding, failure, ok, skip, warning
from vllama.engines.base import DiscoveredEngines
from vllama.machine.detect import free_ram_bytes
from vllama.machine.environments.layout import list_site_packages
from vllama.machine.linux_gpus import INSIDE
from vllama.machine.nvidia import Version, can_run, find_torch_cuda
from vllama.machine.types import Platform, Vendor

Held = Mapping[int, Mapping[int, int]]

VULKAN_FOLDERS = ("usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d", "etc/vulkan/icd.d")
"""Where Vulkan's loader looks for drivers (its LoaderDriverInterface.md)."""
VULKAN_DRIVERS = {Vendor.AMD: "radeon|amd", Vendor.INTEL: "intel"}
"""What the files of drivers have in their names."""
PCI = Path("/sys/bus/pci/devices")
NVIDIA_ID = "0x10de"
DISPLAY_CLASS = "0x03"
LITTLE_RAM = 0.1
HOLDERS = 3
HOLDER_BYTES = 256 * 1024 * 1024


def driver(platform: Platform, cuda: Version | None, *, pci: Path = PCI) -> Iterator[Finding]:
    """Tell the GPUs and what detection complained about."""
    for gpu in platform.accelerators:
        facts = [size(gpu.total_bytes)]
        if gpu.driver:
            facts.append(f"driver {gpu.driver}")
        if gpu.vendor is Vendor.NVIDIA and cuda:
            facts.append(f"up to CUDA {_text(cuda)}")
        yield ok(f"{gpu.name}: {', '.join(facts)}")
    for note in platform.notes:
        yield ok(note) if INSIDE in note else warning(note)
    untold = {gpu.vendor for gpu in platform.untold}
    if platform.of(Vendor.NVIDIA) or Vendor.NVIDIA in untold:
        return
    if cards := nvidia_cards(pci):
        plural = "s" if cards > 1 else ""
        yield failure(
            f"{cards} NVIDIA GPU{plural} in this machine cannot be used: no driver responds",
            "install the NVIDIA driver, or reboot after its update (nvidia-smi must work)",
        )
    elif not platform.accelerators and not platform.notes:
        yield ok("no GPU: models run on the CPU")


def nvidia_cards(pci: Path) -> int:
    """Count NVIDIA's display devices on the bus, whether or not a driver knows them (Linux)."""

    def read(path: Path) -> str:
        try:
            return path.read_text().strip()
        except OSError:
            return ""

    return sum(
        read(device / "vendor") == NVIDIA_ID and read(device / "class").startswith(DISPLAY_CLASS)
        for device in (pci.iterdir() if pci.is_dir() else ())
    )


def vulkan(platform: Platform, *, root: Path = Path("/")) -> Iterator[Finding]:
    """Tell whether llama-server's own build, which has Vulkan, can use the GPUs (Linux)."""
    drivers = [file for folder in VULKAN_FOLDERS for file in (root / folder).glob("*.json")]
    gpus = {gpu.vendor: gpu for gpu in platform.accelerators if gpu.vendor in VULKAN_DRIVERS}
    if platform.os != "linux" or not gpus:
        yield skip("no AMD or Intel GPU on Linux")
        return
    for vendor, gpu in gpus.items():
        if any(re.search(VULKAN_DRIVERS[vendor], file.name) for file in drivers):
            yield ok(f"a Vulkan driver for {gpu.name} is installed")
            continue
        yield warning(
            f"llama-server cannot use {gpu.name}: its Vulkan driver is not installed",
            "install it: apt install mesa-vulkan-drivers libvulkan1, or dnf install "
            "mesa-vulkan-drivers vulkan-loader",
        )


def cuda_against_wheels(
    platform: Platform, found: DiscoveredEngines, driver_version: Version | None
) -> Iterator[Finding]:
    """Compare the driver's CUDA with the one that each engine's packages were built for."""
    if not platform.of(Vendor.NVIDIA):
        yield skip("no NVIDIA GPU")
        return
    looked = False
    for name, installation in found.installations.items():
        if installation.python is None:
            continue
        sites = list_site_packages(installation.python.parent.parent)
        built = find_torch_cuda(sites)
        title = found.engines[name].title
        if built is None:
            if any((site / "torch").is_dir() for site in sites):
                looked = True
                yield warning(
                    f"{title} has PyTorch without CUDA: it does not use the GPU",
                    f"install a CUDA build in its own environment: vllama engines install {name}",
                )
            continue
        looked = True
        if driver_version is None:
            yield warning(
                f"{title} is built for CUDA {_text(built)}; the driver's CUDA version is unknown"
            )
        elif can_run(built, driver_version):
            yield ok(
                f"{title} is built for CUDA {_text(built)}; the driver supports CUDA "
                f"{_text(driver_version)}"
            )
        else:
            yield failure(
                f"{title} is built for CUDA {_text(built)}, but the driver supports only CUDA "
                f"{_text(driver_version)}",
                "update the NVIDIA driver, or install a build for an older CUDA",
            )
    if not looked:
        yield skip("no engine with packages for CUDA")


def ram(platform: Platform) -> Iterator[Finding]:
    """Tell how much memory is free, and who holds most where it is little."""
    free, total = free_ram_bytes(), platform.ram_total_bytes
    text = f"{size(free)} of {size(total)} RAM is free"
    holders = _name_rows(_ram_holders())
    if total and free < LITTLE_RAM * total:
        yield warning(f"{text}; {holders}", "close programs, or unload: vllama stop MODEL")
    else:
        yield ok(f"{text}; {holders}" if holders else text)


def gpu_memory(platform: Platform, ask: Callable[[], Held]) -> Iterator[Finding]:
    """Tell how much GPU memory is free and which processes hold it (`ask` as `gpu_processes`)."""
    cards = [gpu for gpu in platform.accelerators if gpu.vendor is not Vendor.APPLE]
    if not cards:
        yield skip("no GPU with dedicated memory")
    held = ask() if cards else {}  # a driver that does not answer is asked once only
    for gpu in cards:
        free = f"{size(gpu.free_bytes)} of {size(gpu.total_bytes)} of GPU {gpu.index} is free"
        on_it = {pid: by[gpu.index] for pid, by in held.items() if gpu.index in by}
        holders = _name_rows((_name(pid), pid, bytes_) for pid, bytes_ in on_it.items())
        taken = gpu.total_bytes - gpu.free_bytes
        if gpu.total_bytes and taken > gpu.total_bytes / 2:
            who = holders or "by processes that are not visible here"
            yield warning(f"{free}; {who}", "close programs on the GPU (nvidia-smi lists them)")
        else:
            yield ok(f"{free}; {holders}" if holders else free)


def _ram_holders() -> list[tuple[str, int, int]]:
    rows = []
    for process in psutil.process_iter(["name", "memory_info"]):
        memory = process.info["memory_info"]
        if memory is not None and memory.rss >= HOLDER_BYTES:
            rows.append((process.info["name"] or "?", process.pid, memory.rss))
    return rows


def _name_rows(rows: Iterable[tuple[str, int, int]]) -> str:
    most = sorted(rows, key=lambda row: -row[2])[:HOLDERS]
    listed = [f"{name} (pid {pid}) {size(bytes_)}" for name, pid, bytes_ in most]
    return f"most of it is used by {', '.join(listed)}" if listed else ""


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a process"


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


LIMIT_S = 6.0
MOST_ANSWER_BYTES = 1024 * 1024


def hub(endpoint: str | None, token: str | None, *, offline: bool) -> Iterator[Finding]:
    """Ask the hub for the token's owner, or without a token for any model."""
    if offline:
        yield skip("the hub is not contacted (hf_offline)")
        return
    from huggingface_hub import constants

    from vllama.net.web.bodies import GZIP, read_body
    from vllama.net.web.connections import Connections, RequestFailed

    url = (endpoint or constants.ENDPOINT).rstrip("/")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    path = "/api/whoami-v2" if token else "/api/models?limit=1"
    try:
        with (
            Connections(connect_s=LIMIT_S, silence_s=LIMIT_S) as connections,
            connections.ask(url + path, headers | GZIP) as answer,
        ):
            body = read_body(answer, MOST_ANSWER_BYTES)
    except (RequestFailed, SourceError) as error:
        yield warning(
            f"cannot reach the hub at {url} ({describe_connection_error(error)})",
            "check the network, HTTPS_PROXY and HF_ENDPOINT; installed models run without the hub",
        )
        return
    if answer.status in (401, 403) and token:
        yield failure(
            f"the hub at {url} rejects the token",
            "create a new one in the hub's settings, and set HF_TOKEN to it",
        )
    elif answer.status >= 500:
        yield warning(f"the hub at {url} returned HTTP {answer.status}", "try again later")
    elif token and answer.status == 404:
        yield ok(f"{url} responds; it does not use tokens")
    elif token:
        yield ok(f"{url} responds and accepts the token{_whose(body)}")
    else:
        yield ok(f"{url} responds; no token is set, which only gated and private models need")


def _whose(body: bytes) -> str:
    try:
        name = json.loads(body).get("name")
    except (ValueError, AttributeError):
        return ""
    return f" of {name}" if isinstance(name, str) else ""
