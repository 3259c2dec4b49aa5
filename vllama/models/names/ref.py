"""Model names as people type them: the only place that takes a name apart.

Grammar (Ollama, types/model/name.go; the hub forms are llama.cpp's and ours)::

    name  = [scheme "://"] [host "/"] [namespace "/"] model [":" tag]
    hub   = namespace "/" repo [at] [":" quant]       two segments without a host
          | ("hf.co" | "huggingface.co") "/" namespace "/" repo [at] [":" quant]
          | "hf://" namespace "/" repo [at] [":" quant | "/" file ".gguf"]
          | "https://" hub host "/" namespace "/" repo ["/blob/" revision "/" file]
    at    = "@" revision                              a branch, a tag or a commit of the repository
    ollama = "ollama://" [namespace "/"] model [":" tag]      Ollama's registry
    path  = "/…" | "./…" | "../…" | "~/…" | "file://…"

Pure: names come over the network too, and a name must not mean one thing where a file exists and
another where it does not. A bare `x.gguf` typed in a shell is made whole before (`config.parse`).

Limits: host 350, namespace 80 (no dot), model and tag 80 characters; hub repositories and tags
(a tag may be a file's name) 96 and 255, revisions 200. White space around the name is ignored, and
case does not matter, except in a revision. The tag defaults to `latest`. Must not know stores or
sources.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from vllama.base.errors import InvalidModelRef, VllamaError
from vllama.models.names.quant import parse_quant_tag

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
HUB_HOST = "hf.co"
HUB_HOSTS = frozenset({HUB_HOST, "huggingface.co", "www.huggingface.co", "www.hf.co"})

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HUB_SCHEMES = frozenset({"hf", "huggingface"})
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
HUB_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_REVISION = re.compile(r"(?!.*(?:\.\.|//|/$|\.lock$))\w[\w./+-]{0,199}", re.ASCII)
_MAIN = "main"
_FILE = "file://"
_WEB_PAGE = re.compile(r"([^/]+/[^/]+/[^/]+)/(?:tree|blob|resolve)/([^/]+)(?:/(.*))?")
_HUB_FILE = re.compile(
    r"((?:(?:www\.)?(?:hf|huggingface)\.co/)?[^/]+/[^/]+)/(?:.*/)?([^/:]+\.gguf)", re.IGNORECASE
)
_SHORT_TYPES = "use the form model[:tag], org/repo[:QUANT] or the path of a .gguf file"


class Kind(StrEnum):
    """Kind of a name's target."""

    PATH = "path"
    LIBRARY = "library"
    HUB = "hub"


INVALID_NAME = "invalid model name"
"""Ollama's text, which clients match."""
MAX_NAME = 4096
"""Characters of a name; as long as a path may be on Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A parsed model name; make one with `ModelRef.parse`.

    `model` is the repository's name for the hub and the display name's stem for a path.
    `host` is None where the user gave none. `tag` is `latest` where none was given. `revision` is a
    branch, tag or commit of a hub repository; None means the branch main.
    """

    kind: Kind
    text: str
    model: str
    tag: str = DEFAULT_TAG
    namespace: str | None = None
    host: str | None = None
    path: Path | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> ModelRef:
        """Parse what a user typed; raise InvalidModelRef."""
        text = text.strip()
        if not text or "\0" in text or len(text) > MAX_NAME:
            raise _invalid(_SHORT_TYPES)
        if not is_path(text):
            return cls._of_name(text)
        return cls.of_path(Path(text[7:] if text.lower().startswith(_FILE) else text), text)

    @classmethod
    def of_path(cls, path: Path, text: str | None = None) -> ModelRef:
        """Make the reference of a file or folder."""
        home = path.parts[:1]
        if home and home[0].startswith("~") and home[0] != "~":  # would tell which users exist
            raise _invalid("use the full path")
        try:
            full = path.expanduser().absolute()
        except RuntimeError as error:  # there is no home folder
            raise _invalid(f"check the path '{path}': {error}") from error
        return cls(kind=Kind.PATH, text=text or str(path), model=path_stem(full), path=full)

    @classmethod
    def of_hub(cls, hub_id: str, tag: str = DEFAULT_TAG, revision: str | None = None) -> ModelRef:
        """Make the reference of a hub repository `org/repo` (or an old one without `org`)."""
        revision = None if revision == _MAIN else revision
        namespace, _, repo = hub_id.rpartition("/")
        if not namespace:  # the oldest repositories (`gpt2`) have none: named like a library's
            return cls(kind=Kind.LIBRARY, text=f"{repo}:{tag}", model=repo, tag=tag)
        at = f"@{revision}" if revision else ""
        return cls(
            kind=Kind.HUB,
            text=f"{HUB_HOST}/{hub_id}{at}:{tag}",
            model=repo,
            tag=tag,
            namespace=namespace,
            host=HUB_HOST,
            revision=revision,
        )

    @classmethod
    def of_parts(cls, host: str, namespace: str, model: str, tag: str) -> ModelRef:
        """Make the reference of a full name in its own spelling. Raises InvalidModelRef."""
        make = cls._of_hub_segments if host.lower() in HUB_HOSTS else cls._of_library_segments
        text = f"{host}/{namespace}/{model}:{tag}"
        return replace(make(text, [host, namespace, model], tag, None), host=host)

    @classmethod
    def _of_name(cls, text: str) -> ModelRef:
        scheme, rest = _split_scheme(text)
        rest = _strip_origin(rest)
        rest, revision = _split_revision(rest, before_path=scheme in _HUB_SCHEMES)
        rest, file_tag, branch = _strip_web_page(rest)
        revision = revision or branch
        if scheme in _HUB_SCHEMES and (file := _HUB_FILE.fullmatch(rest)):
            rest, file_tag = file.groups()
        rest = rest.rstrip("/") if scheme else rest
        name, tag = _split_tag(rest)
        tag = file_tag or tag
        segments = name.split("/")
        if scheme == "ollama":
            short = len(segments) < 3  # without a host it is Ollama's own registry's
            padding = [DEFAULT_HOST, DEFAULT_NAMESPACE][: 3 - len(segments)] if short else []
            return cls._of_library_segments(text, [*padding, *segments], tag, revision)
        if scheme in _HUB_SCHEMES:
            segments = segments if segments[0].lower() in HUB_HOSTS else [HUB_HOST, *segments]
        if segments[0].lower() in HUB_HOSTS or (len(segments) == 2 and scheme is None):
            return cls._of_hub_segments(text, segments, tag, revision)
        if scheme in ("http", "https") and rest.lower().endswith(".gguf"):
            raise _invalid("download the file first, then use its path")
        return cls._of_library_segments(text, segments, tag, revision)

    @classmethod
    def _of_hub_segments(
        cls, text: str, segments: list[str], tag: str, revision: str | None
    ) -> ModelRef:
        host = HUB_HOST if len(segments) != 2 or segments[0].lower() in HUB_HOSTS else None
        parts = segments[1:] if host else segments
        if len(parts) != 2:
            raise _invalid(
                "for a hub model use hf.co/org/repo[:QUANT]; for a single file, its "
                "quantization, such as :Q4_K_M"
            )
        namespace, repo = parts
        _check(NAMESPACE, namespace)
        _check(REPO, repo)
        _check(HUB_TAG, tag)
        return cls(
            kind=Kind.HUB,
            text=text,
            model=repo,
            tag=tag,
            namespace=namespace,
            host=host,
            revision=None if revision == _MAIN else revision,
        )

    @classmethod
    def _of_library_segments(
        cls, text: str, segments: list[str], tag: str, revision: str | None
    ) -> ModelRef:
        if revision is not None:
            raise _invalid("only hub models have revisions: org/repo@revision")
        if len(segments) > 3:
            raise _invalid(_SHORT_TYPES)
        model = segments[-1]
        namespace = segments[-2] if len(segments) > 1 else None
        host = segments[0] if len(segments) > 2 else None
        if host is not None:
            _check(_HOST, host)
        if namespace is not None:
            _check(NAMESPACE, namespace)
        _check(MODEL, model)
        _check(MODEL, tag)
        return cls(
            kind=Kind.LIBRARY, text=text, model=model, tag=tag, namespace=namespace, host=host
        )

    @property
    def has_tag(self) -> bool:
        """Tell whether the tag says anything (`latest` is what is meant without a tag)."""
        return self.tag.lower() != DEFAULT_TAG

    @property
    def hub_id(self) -> str | None:
        """`org/repo` for hub names, in the case that was typed; else None."""
        return self.plain if self.kind is Kind.HUB else None

    @property
    def plain(self) -> str:
        """The name without host and tag: `org/repo`, `smollm2`."""
        return f"{self.namespace}/{self.model}" if self.namespace else self.model

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Host, namespace, model and tag, with Ollama's defaults."""
        host, namespace = self.host or DEFAULT_HOST, self.namespace or DEFAULT_NAMESPACE
        return host, namespace, self.model, self.tag

    @property
    def canonical(self) -> str:
        """The full name, equal for equal models: in lower case, but for a path or a revision."""
        match self.kind:
            case Kind.PATH:
                return str(self.path)
            case Kind.HUB:
                return f"{HUB_HOST}/{self.hub_id}".lower() + f"{self._at}:{self.tag.lower()}"
            case Kind.LIBRARY:
                return self._as_library().lower()

    @property
    def candidates(self) -> tuple[str, ...]:
        """All canonical names that this one may mean, best first.

        `user/model` without a host is a hub repository, or a namespaced local name of Ollama's.
        """
        if self.kind is Kind.HUB and self.host is None and self.revision is None:
            return (self._as_library().lower(), self.canonical)
        return (self.canonical,)

    @property
    def display(self) -> str:
        """The shortest form, always with a tag: `smollm2:135m`, `hf.co/org/repo:Q4_K_M`."""
        match self.kind:
            case Kind.PATH:
                return f"{self.model}:{DEFAULT_TAG}"
            case Kind.HUB:
                tag = self.tag.upper() if parse_quant_tag(self.tag) else self.tag
                tag = DEFAULT_TAG if not self.has_tag else tag
                return f"{HUB_HOST}/{self.hub_id}{self._at}:{tag}"
            case Kind.LIBRARY:
                host, namespace, *_ = self.parts
                if host.lower() != DEFAULT_HOST:
                    return f"{host}/{namespace}/{self.model}:{self.tag}"
                if namespace.lower() != DEFAULT_NAMESPACE:
                    return f"{namespace}/{self.model}:{self.tag}"
                return f"{self.model}:{self.tag}"

    @property
    def _at(self) -> str:
        return f"@{self.revision}" if self.revision else ""

    def _as_library(self) -> str:
        return "{}/{}/{}:{}".format(*self.parts)

    def means(self, name: str) -> bool:
        """Tell whether a bundle's display `name` is what this reference asks for.

        Hub models are displayed with their host, so two segments are a namespaced local name.
        """
        return read_canonical(name) in self.candidates

    def with_tag(self, tag: str) -> ModelRef:
        """Return the same hub or library name with another tag."""
        return replace(self, tag=tag)


@lru_cache(maxsize=16_384)
def read_canonical(name: str) -> str | None:
    """Return the first canonical name of a text; None if it is no name."""
    try:
        return ModelRef.parse(name).candidates[0]
    except InvalidModelRef:
        return None


def is_path(text: str) -> bool:
    """Tell whether a name is that of a file or folder."""
    text = text.strip()
    begins = (_FILE, "/", "./", "../", "~/")
    return text in {".", "..", "~"} or text.lower().startswith(begins)


def add_default_tag(name: str) -> str:
    """Return a name as it is displayed, always with a tag; a path has none."""
    has_tag = is_path(name) or ":" in name.rpartition("/")[2]
    return name if has_tag else f"{name}:{DEFAULT_TAG}"


def list_spellings(name: str) -> set[str]:
    """Return the ways to write a name: in lower case, and without `:latest` and the hub's host.

    Two names of settings that share one mean the same model; a server elsewhere may have both.
    """
    lowered = name.strip().lower()
    forms = {lowered, lowered.removesuffix(f":{DEFAULT_TAG}")}
    for host in HUB_HOSTS:
        short = {form.removeprefix(f"{host}/") for form in forms if form.startswith(f"{host}/")}
        forms |= {form for form in short if "/" in form}  # the pattern hf.co/* is not *
    return forms


def path_stem(path: Path) -> str:
    """Return a file's or folder's name as a model name: lower case, odd characters as `-`.

    Accents go; letters of other scripts become a number, so that two files have two names.
    """
    name = path.name or "root"
    stem = name[: -len(".gguf")] if name.lower().endswith(".gguf") else name
    plain = "".join(x for x in unicodedata.normalize("NFKD", stem) if not unicodedata.combining(x))
    short = re.sub(r"[^a-z0-9_.-]+", "-", plain.lower()).rstrip("-").lstrip("-.")[:80]
    short = short or "model"
    if any(letter.isalnum() for letter in plain if not letter.isascii()):
        data = stem.encode(errors="surrogateescape")
        short += f"-{hashlib.blake2b(data, digest_size=3).hexdigest()}"
    return short


def _split_scheme(text: str) -> tuple[str | None, str]:
    match = _SCHEME.match(text)
    if match is None:
        return None, text
    scheme = match.group(1).lower()
    if scheme not in _HUB_SCHEMES | {"https", "http", "ollama"}:
        raise _invalid(f"use hf:// or https:// instead of {scheme}://")
    rest = text[match.end() :].split("?", 1)[0].split("#", 1)[0]
    return scheme, rest


def _split_revision(rest: str, *, before_path: bool) -> tuple[str, str | None]:
    """Take the revision out of `org/repo@revision:tag`, or of `org/repo:tag@revision`.

    `before_path`: a file's path may follow it, so a slash in it is written %2F.
    """
    name, at, after = rest.partition("@")
    if not at:
        return rest, None
    if before_path:
        after, slash, path = after.partition("/")
        name, after = f"{name}{slash}{path}", unquote(after)
    revision, colon, tag = after.partition(":")
    if revision.lower() == "sha256":
        raise _invalid("use a tag instead of the @digest")
    if _REVISION.fullmatch(revision) is None:
        raise _invalid(f"check the revision {revision!r}: it must be a branch, tag or commit")
    return f"{name}{colon}{tag}", revision


def _strip_web_page(rest: str) -> tuple[str, str | None, str | None]:
    """Reduce an address of the hub's file browser to the repository; return file and branch too."""
    match = _WEB_PAGE.fullmatch(rest)
    if match is None or match.group(1).split("/")[0].lower() not in HUB_HOSTS:
        return rest, None, None
    branch, file = unquote(match.group(2)), match.group(3)
    if _REVISION.fullmatch(branch) is None:
        raise _invalid(f"check the revision {branch!r}: it must be a branch, tag or commit")
    return match.group(1), file.rsplit("/", 1)[-1] if file else None, branch


def _strip_origin(rest: str) -> str:
    """Take off `:local`, which says that a model is not in the cloud (`:cloud` stays)."""
    origins = [part.lower() for part in rest.split(":")[1:]]
    if "local" in origins and "cloud" in origins:
        raise InvalidModelRef("use either :local or :cloud, not both")
    return rest[: -len(":local")] if origins[-1:] == ["local"] else rest


def _split_tag(rest: str) -> tuple[str, str]:
    slash, colon = rest.rfind("/"), rest.rfind(":")
    if colon <= slash:  # no colon, or the one of host:port
        return rest, DEFAULT_TAG
    return rest[:colon], rest[colon + 1 :]


def _check(pattern: re.Pattern[str], part: str) -> None:
    if pattern.fullmatch(part) is None:
        raise _invalid(f"check {part!r}: {_SHORT_TYPES}" if part else _SHORT_TYPES)


def _invalid(hint: str) -> InvalidModelRef:
    return InvalidModelRef(INVALID_NAME, hint=hint)


class CloudDisabled(VllamaError):
    """Something was asked for that only ollama.com has."""

    status = 403

    def __init__(self, what: str = "remote model is unavailable") -> None:
        super().__init__(f"ollama cloud is disabled: {what}")


def is_cloud(ref: ModelRef) -> bool:
    """Tell whether a name means a model in the cloud: `…:cloud`, `…:…-cloud`."""
    if ref.kind is Kind.PATH or ref.host == HUB_HOST:
        return False
    tag = ref.tag.lower()
    return tag == "cloud" or tag.endswith("-cloud")
