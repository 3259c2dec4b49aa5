"""Checks that run before the server accepts work: hardware, engines, folders, the model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from vllama.base import private
from vllama.base.errors import ConfigError, ModelNotFound, VllamaError
from vllama.base.spelling import suggest
from vllama.base.threads import begin
from vllama.config import Config, environ, list_upstreams
from vllama.config.address import SCHEME_PORTS, is_public, leads_to, list_listening
from vllama.engines.devices import tell_memory
from vllama.engines.registry import discover_engines, make_search_paths, suppose_installed
from vllama.machine.cards import read_cards, read_size, share_ram
from vllama.machine.detect import detect
from vllama.machine.types import Vendor
from vllama.machine.visible import hide_gpus
from vllama.models.library import Library
from vllama.models.lookup import Entry
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.remote import make_no_repository_error
from vllama.models.settings import ModelsSettings, ModelTables
from vllama.plan.choose import choose_engine
from vllama.plan.types import Facts
from vllama.scheduler.memory import open_draft_records
from vllama.supervise.probe import trust_only


def gather_facts(config: Config) -> Facts:
    """Detect hardware and engines, in parallel."""
    options = {"upstreams": list_upstreams(config)}
    platform, found = (
        begin(detect),
        begin(discover_engines, None, options, make_search_paths(config)),
    )
    engines = found.result()
    devices = [one for here in engines.installations.values() for one in here.devices]
    return Facts(
        platform=hide_gpus(tell_memory(platform.result(), devices), environ()),
        found=engines,
        settings=config,
        slot_dir=config.slot_dir if config.cache_disk_bytes else None,
        share_dir=config.run_dir / "slots",
        draft_speeds=open_draft_records(config.data_dir).read(),
    )


def suppose_machine(facts: Facts, named: Sequence[str], ram: str | None) -> Facts:
    """Return the facts of a machine that is not here, with these GPUs (`machine.cards`) and RAM.

    Raises ConfigError for a name or a size that means nothing.
    """
    gpus, here = read_cards(named), facts.platform
    ram_bytes = max((gpu.total_bytes for gpu in gpus if gpu.shares_ram), default=0)
    ram_bytes = read_size(ram) if ram else ram_bytes or here.ram_total_bytes
    is_mac = any(gpu.vendor is Vendor.APPLE for gpu in gpus)
    platform = replace(
        here,
        os="darwin" if is_mac else "linux",
        arch="arm64" if is_mac else "x86_64",
        accelerators=tuple(share_ram(gpu, ram_bytes) for gpu in gpus),
        ram_total_bytes=ram_bytes,
        ram_available_bytes=ram_bytes,
        untold=(),
        notes=("Assumes that all memory is free and every supported engine is installed",),
    )
    return replace(facts, platform=platform, found=suppose_installed(facts.found, platform))


def close_folders(config: Config) -> Iterator[str]:
    """Close folders to other users that an older vllama left open; yield what to report."""
    for folder in config.own_folders:
        if private.restrict(folder):
            yield f"'{folder}' was readable by other users; permissions fixed"


def check_nodes(config: Config) -> None:
    """Raise ConfigError if other machines must not be talked to as the settings say.

    The key between nodes would cross a public network unencrypted, or their certificates cannot be
    read.
    """
    if config.node_certs:
        trust_only(str(config.node_certs))
    if config.nodes:
        urls = [urlsplit(url) for url in config.nodes]
        public = [url.hostname or "" for url in urls if url.scheme == "http"]
        advice = "give the nodes certificates (--tls-cert), and use https addresses"
        if any(url.scheme == "dns+https" for url in urls) and not config.node_certs:
            raise ConfigError(
                "cannot use dns+https: the addresses of nodes are not in their certificates",
                hint="name a file with the certificates (--node-certs)",
            )
    elif config.node_key_file and not config.tls_cert:
        public = list_listening(config.host)
        advice = "set a certificate (--tls-cert), or the address of a private network (--host)"
    else:
        return
    if public := [host for host in public if is_public(host)]:
        raise ConfigError(
            f"cannot use http at {', '.join(public)}: the node key and all responses would be sent "
            "unencrypted",
            hint=advice,
        )


def check_open(config: Config) -> None:
    """Raise ConfigError if others could use a server that is to have a key, and has none."""
    if not config.open and config.exposure is not None:
        raise ConfigError(
            f"cannot listen on {config.host} without a key: other machines can reach it",
            hint="set a key (VLLAMA_API_KEY, VLLAMA_API_KEY_FILE, vllama keys add NAME), or allow "
            "all requests (VLLAMA_OPEN=1)",
        )


def check_engine(config: Config, facts: Facts) -> None:
    """Raise NoPlan if no engine is here, unless this server only forwards."""
    if not (config.is_head and config.no_local):
        choose_engine(facts)


def check_model(library: Library, name: str | None) -> Entry | None:
    """Return the model to load, or raise its error, as far as this disk shows it.

    None: no `name`, or one that can be downloaded.
    """
    if not name:
        return None
    ref = ModelRef.parse(name)
    try:
        entry = library.find(name)
        entry.read()
    except ModelNotFound:
        if ref.kind is Kind.PATH:
            raise
        if ref.kind is Kind.LIBRARY and library.find_alias(ref) is None:
            raise make_no_repository_error(ref) from None  # what a pull says, too
        return None
    return entry


def with_preload(settings: ModelsSettings, name: str | None) -> ModelsSettings:
    """List a model that was named by its path too, so that clients find it."""
    ref = ModelRef.parse(name) if name else None
    if ref is None or ref.path is None:
        return settings
    return replace(settings, folders=(*settings.folders, ref.path))


def check_upstreams(config: Config) -> None:
    """Raise ConfigError for an upstream, or a link of a fallback, that is this server itself."""
    for upstream in list_upstreams(config):
        parts = urlsplit(upstream.root)
        port = parts.port or SCHEME_PORTS[parts.scheme]
        if port == config.port and leads_to(parts.hostname or "", config.host):
            raise ConfigError(
                f"cannot use '{upstream.root}' as an upstream or fallback: it is this server, and "
                "requests would loop",
                hint="for a model on this server, use only its name",
            )


def list_unknown_links(config: Config, library: Library) -> Iterator[str]:
    """Yield warnings of links in fallbacks that nothing is called by now; may ask upstreams.

    No error: a model may be pulled later, and the other links may do.
    """
    names = [upstream.name for upstream in config.upstreams if upstream.name]
    for link in ModelTables(config.models).list_links():
        prefix = link.partition(":")[0]
        if "://" in link or prefix in names:
            continue
        try:
            library.find(link)
        except VllamaError:
            known = suggest(prefix, names, f"upstreams: {', '.join(names) or '-'}")
            yield f"fallback '{link}' is neither an installed nor an upstream model; {known}"


WRITTEN = ("log_dir", "run_dir")
"""Settings of folders without which no engine can be started."""
HINT = "use a folder with write access: VLLAMA_DATA_DIR=FOLDER"


def move_unwritable(config: Config) -> tuple[dict[str, Path], str]:
    """Return temporary folders for those that cannot be written to, and the warning about it.

    A read-only root or a user without a home must not prevent a start: logs and the records of
    running engines are then kept in a temporary folder. Raises ConfigError where there is none.
    """
    failed = {name: error for name in WRITTEN if (error := try_to_write(getattr(config, name)))}
    if not failed:
        return {}, ""
    name, error = next(iter(failed.items()))
    problem = f"cannot write to '{getattr(config, name)}': {error.strerror or error}"
    try:
        place = Path(tempfile.mkdtemp(prefix="vllama-"))
    except OSError:
        raise ConfigError(problem, hint=HINT) from None
    warning = f"{problem}; logs of this server are stored in '{place}'; {HINT}"
    return {name: place / name.removesuffix("_dir") for name in failed}, warning


def try_to_write(folder: Path) -> OSError | None:
    """Make a folder if it is missing and a file in it; return why that failed."""
    try:
        private.make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error
