"""Modelfiles: text → instructions, options as text → values, settings → text. Pure.

The grammar is Ollama's (parser/parser.go)::

    line  = "#" anything | KEYWORD value | "PARAMETER" name value | "MESSAGE" role value
    value = rest of the line | text in quotes | text in triple quotes

Keywords are case-insensitive, and white space around a value is ignored. A quoted text ends at the
first line end that closes its quotes, so it may span lines and have quotes inside them; there are
no escapes. One thing cannot be written: a text with triple quotes at the end of an inner line.
See docs/reference/ollama-api.md#show, #create; for the options #request-options, #load-options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllama.base.errors import BadRequest
from vllama.base.spelling import suggest
from vllama.models.types import Bundle, Definition, ModelInfo

BARE_TEMPLATE = "{{ .Prompt }}"
"""What Ollama shows for a model without a template."""
NAME_WIDTH = 30
ROLES = ("system", "user", "assistant")
KEYWORDS = (
    "from", "parameter", "template", "system", "adapter", "license", "message", "requires",
    "renderer", "parser", "draft",
)  # fmt: skip
# a version as Go's semver takes it, with or without its "v"
_VERSION = re.compile(r"v?\d+(\.\d+(\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?)?)?")
_WORD = re.compile(r"\s*(\S+)(?:\s+|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelfile(Definition):
    """Content of a Modelfile: `sources` are the FROM lines, `unused` those without effect here.

    `adapter_names` and `draft_name` are what its lines name, relative to where it lies; `adapters`
    and `draft` are left to whoever knows that.
    """

    sources: tuple[str, ...]
    adapter_names: tuple[str, ...] = ()
    draft_name: str | None = None
    unused: tuple[str, ...] = ()


def parse_modelfile(text: str) -> Modelfile:
    """Read a Modelfile. Raises BadRequest that names the line."""
    found: dict[str, list[str]] = {keyword: [] for keyword in KEYWORDS}
    parameters: dict[str, object] = {}
    messages: list[Mapping[str, object]] = []
    unused: dict[str, None] = {}
    for number, keyword, word, value in _instructions(text):
        if not value and keyword in ("from", "adapter", "draft"):
            raise _wrong(number, f"{keyword.upper()} needs a value")
        match keyword:
            case "parameter" if word in OBSOLETE:
                unused[f"PARAMETER {word}"] = None
            case "parameter":
                _add_parameter(parameters, number, word, value)
            case "message":
                messages.append({"role": word, "content": value})
            case "requires":
                if not _VERSION.fullmatch(value):
                    raise _wrong(number, "requires must be a valid semver (e.g. 0.14.0)")
                found[keyword].append(value.removeprefix("v"))
            case _:
                found[keyword].append(value)
    if not found["from"]:
        raise BadRequest(
            "cannot use the Modelfile: it has no FROM line",
            hint="specify the base model: FROM smollm2:135m",
        )
    last = {keyword: values[-1] if values else None for keyword, values in found.items()}
    return Modelfile(
        sources=tuple(found["from"]),
        parameters=parameters,
        system=last["system"],
        template=last["template"],
        renderer=last["renderer"] or None,
        parser=last["parser"] or None,
        requires=last["requires"],
        messages=tuple(messages),
        license="\n\n".join(found["license"]) if found["license"] else None,
        adapter_names=tuple(found["adapter"]),
        draft_name=last["draft"],
        unused=tuple(unused),
    )


def _instructions(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield line number, keyword, parameter's name or message's role ("" else), and value."""
    lines = text.removeprefix("\ufeff").split("\n")
    at = 0
    while at < len(lines):
        first, at = at, at + 1
        line = lines[first].strip()
        if not line or line.startswith("#"):
            continue
        keyword, rest = _split_word(lines[first])
        keyword, word = keyword.lower(), ""
        if keyword not in KEYWORDS:
            known = suggest(keyword, map(str.upper, KEYWORDS))
            raise _wrong(first, f"unknown instruction '{keyword[:40]}'; {known}")
        if keyword in ("parameter", "message"):
            word, rest = _split_word(rest)
            word = word.lower()
            if keyword == "message" and word not in ROLES:
                raise _wrong(first, f"MESSAGE needs a role: {', '.join(ROLES)}")
            if not word or not rest.strip():
                raise _wrong(first, f"{keyword.upper()} needs a name and a value")
        while (value := _unquote(rest.strip())) is None:
            if at == len(lines):
                raise _wrong(first, "it has an unclosed quote")
            rest, at = f"{rest}\n{lines[at]}", at + 1
        yield first, keyword, word, value


def _split_word(text: str) -> tuple[str, str]:
    match = _WORD.match(text)
    return (match[1], text[match.end() :]) if match else ("", "")


def _unquote(text: str) -> str | None:
    """Take the quotes off; None if they are not closed yet."""
    for quotes in ('"""', '"'):
        if text.startswith(quotes):
            closed = len(text) >= 2 * len(quotes) and text.endswith(quotes)
            return text[len(quotes) : -len(quotes)] if closed else None
    return text


def _add_parameter(parameters: dict[str, object], number: int, name: str, value: str) -> None:
    """Add a value; a list grows by one."""
    if name in LISTS:
        before = parameters.get(name)
        parameters[name] = [*(before if isinstance(before, list) else ()), value]
        return
    try:
        parameters[name] = parse_parameter(name, [value])
    except ValueError as error:
        raise _wrong(number, str(error)) from None


def _wrong(index: int, reason: str) -> BadRequest:
    return BadRequest(f"cannot use the Modelfile: line {index + 1}: {reason}")


def list_parameters(bundle: Bundle, info: ModelInfo) -> dict[str, object]:
    """Return the parameters that a model brings: its files', and over them its Modelfile's."""
    return {**info.sampling, **bundle.parameters}


def format_parameters(parameters: Mapping[str, object]) -> str:
    """Return one line a value, the name padded, strings quoted; lists give several lines."""
    return "\n".join(
        f"{name:<{NAME_WIDTH}} {_show_value(value)}" for name, value in _each_value(parameters)
    )


def format_modelfile(bundle: Bundle, info: ModelInfo) -> str:
    """Return a Modelfile that would make this model again."""
    lines = [
        # Ollama's words: scripts look for them
        '# Modelfile generated by "ollama show"',
        "# To build a new Modelfile based on this, replace FROM with:",
        f"# FROM {bundle.name}",
        "",
        f"FROM {bundle.base or bundle.path}",
    ]
    if not bundle.base and bundle.projector:
        lines.append(f"FROM {bundle.projector}")
    lines += [f"ADAPTER {path}" for path in bundle.adapters]
    if bundle.draft:
        lines.append(f"DRAFT {bundle.draft}")
    if template := bundle.template or info.chat_template or BARE_TEMPLATE:
        lines.append(f"TEMPLATE {_quote(template)}")
    if bundle.system:
        lines.append(f"SYSTEM {_quote(bundle.system)}")
    for keyword, said in (
        ("RENDERER", bundle.renderer), ("PARSER", bundle.parser), ("REQUIRES", bundle.requires),
    ):  # fmt: skip
        if said:
            lines.append(f"{keyword} {said}")
    for name, value in _each_value(list_parameters(bundle, info)):
        text = _quote(value) if isinstance(value, str) else _show_value(value)
        lines.append(f"PARAMETER {name} {text}")
    for message in bundle.messages:
        lines.append(f"MESSAGE {message['role']} {_quote(str(message['content']))}")
    if bundle.license:
        lines.append(f"LICENSE {_quote(bundle.license)}")
    return "\n".join(lines) + "\n"


def _each_value(parameters: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in sorted(parameters.items()):
        for item in value if isinstance(value, list | tuple) else [value]:
            yield name, item


def _quote(text: str) -> str:
    """Quote a value where Ollama does, or where it would be read as something else."""
    for shown in (text, f'"{text}"') if '"' not in text else (text,):
        if shown.strip() == shown and "\n" not in text and _unquote(shown) == text:
            return shown
    return f'"{text}"' if '"' not in text else f'"""{text}"""'


def _show_value(value: object) -> str:
    """Write a value for `/api/show`: strings as Go quotes them."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


WHOLE = frozenset((
    "num_ctx", "num_predict", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "seed",
    "top_k", "repeat_last_n", "draft_num_predict",
))  # fmt: skip
REAL = frozenset((
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty",
))  # fmt: skip
LISTS = frozenset(["stop"])
BOOLEAN = frozenset(["use_mmap", "low_vram", "penalize_newline"])
KNOWN = WHOLE | REAL | LISTS | BOOLEAN
OBSOLETE = frozenset((
    "f16_kv", "logits_all", "mirostat", "mirostat_eta", "mirostat_tau", "numa", "tfs_z",
    "use_mlock", "vocab_only",
))  # fmt: skip
"""Once known to Ollama, without effect now: left out with a warning."""


def parse_parameter(name: str, values: Sequence[str]) -> object:
    """Return the value of option `name`.

    Raises ValueError with the sentence for the user.
    """
    if name not in KNOWN:
        raise ValueError(f"unknown parameter '{name}'; {suggest(name, sorted(KNOWN))}")
    if not values:
        raise ValueError(f"parameter '{name}' needs a value")
    if name in LISTS:
        return [_strip_quotes(value) for value in values]
    if len(values) > 1:
        raise ValueError(f"parameter '{name}' accepts only one value")
    text = values[0]
    try:
        if name in WHOLE:
            return int(text)
        if name in REAL and math.isfinite(float(text)):
            return float(text)
    except ValueError:
        kind = "a whole number" if name in WHOLE else "a number"
        raise ValueError(f"parameter '{name}' needs {kind}, not '{text}'") from None
    if name in REAL:
        raise ValueError(f"parameter '{name}' needs a number, not '{text}'")
    if text.lower() not in ("true", "false"):
        raise ValueError(f"parameter '{name}' needs true or false, not '{text}'")
    return text.lower() == "true"


def _strip_quotes(text: str) -> str:
    paired = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if paired else text
