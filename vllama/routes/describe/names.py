"""The grammar of models' names (`models.names.ref`) as patterns, by the formats of fields."""

from __future__ import annotations

from vllama.base.meaning import Schema
from vllama.models.names.ref import HUB_HOSTS, HUB_TAG, NAMESPACE, REPO
from vllama.models.names.ref import MODEL as MODEL_PART

# all but names that servers elsewhere have given
_NAMESPACE, _TAGGED = NAMESPACE.pattern, f"{MODEL_PART.pattern}(:{MODEL_PART.pattern})?"
_HOST = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(:[0-9]{1,5})?"
_AT = "(@[A-Za-z0-9_][A-Za-z0-9_+-]{0,40}([%s][A-Za-z0-9_+-]{1,40}){0,3})?"
_REPO = f"{_NAMESPACE}/{REPO.pattern}"
_HUB_HOSTS = "|".join(sorted(HUB_HOSTS)).replace(".", "[.]")
_HUB = f"(hf://{_REPO}{_AT % '.'}|((https?://)?({_HUB_HOSTS})/)?{_REPO}{_AT % './'})"
_LIBRARY = f"((ollama://)?({_NAMESPACE}/)?|(https?://)?{_HOST}/{_NAMESPACE}/){_TAGGED}"
_FILE = f"hf://{_REPO}(/[A-Za-z0-9_-]{{1,80}}){{0,3}}/[A-Za-z0-9_][A-Za-z0-9_-]{{0,79}}[.]gguf"
_PULLED = f"{_LIBRARY}|{_HUB}(:{HUB_TAG.pattern})?|{_FILE}"
_PATH = "~?(/[^/\\x00-\\x1f]{1,100}){1,20}[.]gguf"  # a folder that has a model is taken, too
MODEL_NAMES: dict[str, Schema] = {
    "model": {
        "description": "`model[:tag]`, `namespace/model[:tag]`, `hf.co/organization/model`, or the "
        "path of a file on the server",
        "pattern": f"^({_PULLED}|{_PATH})$",
    },
    "pulled-model": {
        "description": "`model[:tag]`, `namespace/model[:tag]` or `hf.co/organization/model`",
        "pattern": f"^({_PULLED})$",
    },
    "new-model": {
        "description": "`model[:tag]` or `namespace/model[:tag]`",
        "pattern": f"^({_NAMESPACE}/)?{_TAGGED}$",
    },
}
