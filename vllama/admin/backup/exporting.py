"""Gathers what a server has of its own into an archive; the server may run meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from vllama import __version__
from vllama.admin.backup.archive import CONFIG, KEYS, USAGE, describe_parts, write_archive
from vllama.admin.backup.created_models import encode_record, read_records, with_weights
from vllama.admin.backup.usage import read_usage
from vllama.base.errors import VllamaError
from vllama.base.units import rfc3339_local
from vllama.config import SETTINGS, Config, keys_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an archive has got, described by `parts`; `secrets` are keys of the config file."""

    parts: tuple[str, ...]
    secrets: tuple[str, ...]


def export(path: Path, settings: Config, *, weights: bool, force: bool, now_s: float) -> Exported:
    """Write the archive `path`. Raises VllamaError."""
    if path.exists() and not force:
        raise VllamaError(
            f"cannot export to '{path}': it exists", hint="choose another name, or add --force"
        )
    try:
        files: dict[str, Path | bytes] = {}
        if settings.config_file is not None:
            files[CONFIG] = settings.config_file.read_bytes()
        if (keys := keys_file(settings.data_dir)).exists():
            files[KEYS] = keys.read_bytes()
        if rows := read_usage(settings.data_dir):
            files[USAGE] = msgspec.json.encode(rows)
        records = read_records(settings.data_dir)
        for name, record in records.items():
            if weights:
                record, blobs = with_weights(record, settings.data_dir)
                files |= blobs
            files[name] = encode_record(record)
        manifest = write_archive(path, files, vllama=__version__, created_at=rfc3339_local(now_s))
    except OSError as error:
        raise VllamaError(
            f"cannot export to '{path}': {error.strerror or error}: {error.filename}"
        ) from error
    models = tuple(record.name for record in records.values())
    return Exported(parts=describe_parts(manifest, models), secrets=find_secrets(settings))


def find_secrets(settings: Config) -> tuple[str, ...]:
    """Return the keys of the config file that hold secrets."""
    found = [
        setting.key
        for setting in SETTINGS
        if setting.secret and settings.sources.get(setting.field) == str(settings.config_file)
    ]
    for each in settings.upstreams:
        if each.name and each.key and not (each.key_env or each.key_file):
            found.append(f"upstreams.{each.name}.key")
    return tuple(found)
