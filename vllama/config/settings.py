"""All settings, each declared once: type, default, kind of value, help, flag and variables.

From a field of `Config` follow the flag of `serve`, the variables `VLLAMA_*` and Ollama's, the key
of the config file, its JSON schema, and the reference page. The fields are declared by subject in
`server_settings`, `engine_settings`, `source_settings` and `output_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from vllama.config import address
from vllama.config.engine_settings import EngineSettings
from vllama.config.folders import keys_file
from vllama.config.output_settings import OutputSettings
from vllama.config.server_settings import ServerSettings
from vllama.config.setting import Setting
from vllama.config.source_settings import SourceSettings


# the last base comes first where settings are listed
@dataclass(frozen=True, kw_only=True)
class Config(OutputSettings, SourceSettings, EngineSettings, ServerSettings):
    """The settings of one run: an immutable snapshot. None means: decide by what is there.

    Its own fields are not settings: `scheme` follows from the address and the certificate, `notes`
    are warnings for the user, and `sources` says of each setting that was given where it came from.
    """

    scheme: str = "http"
    config_file: Path | None = None
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        return address.url(self.scheme, address.reachable_host(self.host), self.port)

    @property
    def key_to_send(self) -> str | None:
        """The key that the command line shows to the server, None: it has none."""
        return self.api_key[0] if self.api_key else self.client_key

    @property
    def stop_limit_s(self) -> float:
        """The longest that a stop waits for clients, before it ends the engines."""
        return self.shutdown_delay_s + self.drain_timeout_s

    @property
    def wants_keys(self) -> bool:
        """Whether a server needs keys that starts with these settings."""
        from vllama.accounts.keys.store import wants_keys  # most commands need no file of keys

        return bool(self.api_key) or self.require_keys or wants_keys(keys_file(self.data_dir))

    @property
    def exposure(self) -> str | None:
        """The warning for a server that others can reach and that wants no key."""
        if address.is_loopback(self.host) or self.wants_keys:
            return None
        scheme = "https" if self.tls_cert else "http"
        return address.warn_of_exposure(scheme, self.host, self.port, read_only=self.read_only)


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(field=each.name, **each.metadata) for each in fields(Config) if each.metadata
)
BY_FIELD: Mapping[str, Setting] = {each.field: each for each in SETTINGS}
