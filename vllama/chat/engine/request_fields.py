"""Gate for the fields of a client's request to an engine, and the lists of harmless fields.

Every body passes `check_code` when it is decoded: `CODE_FIELDS` are for requests that
`may_send_code`. What a dialect does not read itself is sent on only by `pass_fields`: OpenAI's own
fields, and those that the engine's traits list, within the limits of `field_limits`. The others are
named in a header of the response.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from vllama.base.errors import Forbidden
from vllama.chat.engine.field_limits import fit_field

may_send_code: ContextVar[bool] = ContextVar("may_send_code", default=False)
"""Whether the running request shows a key of an administrator, to a server with `inspect_code`."""

may_use_engine: ContextVar[bool] = ContextVar("may_use_engine", default=False)
"""Whether the running request shows a key with the scope `engine`: only code is kept from it."""

CODE_FIELDS = frozenset((
    # vLLM: `vllm_xargs` reaches plug-ins, one of which runs Python from the request; tensors are
    # unpickled, and processors and readers of media take any argument
    "vllm_xargs", "extra_args", "apply_hooks", "hooks", "logits_processors",
    "logits_processors_args", "kv_transfer_params", "ec_transfer_params", "chat_template",
    "mm_processor_kwargs", "media_io_kwargs", "multi_modal_data", "prompt_embeds", "lora_request",
    # SGLang
    "custom_logit_processor", "custom_params", "lora_path", "lora_paths", "session_params",
    "bootstrap_host", "bootstrap_port", "bootstrap_room", "image_data", "audio_data", "video_data",
    "input_embeds",
    # llama.cpp, MLX, Transformers, TGI
    "lora", "filename", "adapters", "adapter_id", "adapter_path", "draft_model",
    "generation_config",
    # proxies: where the request goes, and with which head
    "api_base", "base_url", "extra_headers",
))  # fmt: skip
"""What an engine may run as code, or what names files, addresses or adapters that it opens."""

_RENDERING = CODE_FIELDS | frozenset((
    "tokenize", "tokenizer_kwargs", "processor_kwargs", "return_tensors", "return_dict", "padding",
    "truncation", "max_length",
))  # fmt: skip
_UNPACKED: Mapping[str, Collection[str]] = {
    "chat_template_kwargs": _RENDERING,  # arguments of the renderer, which are no variables
    "extra_body": CODE_FIELDS,
    "options": CODE_FIELDS,
}
RUN_HERE = ("function", "custom")
"""The types of tools that clients run."""
_RUN_ELSEWHERE = CODE_FIELDS | {"server_url", "connector_id", "tunnel_id"}

STANDARD = frozenset((
    # chats and completions
    "audio", "function_call", "functions", "logit_bias", "max_completion_tokens", "metadata",
    "modalities", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user", "verbosity",
    "web_search_options",
    # speech, transcriptions, images
    "model", "input", "voice", "instructions", "response_format", "speed", "stream_format",
    "stream", "language", "prompt", "temperature", "timestamp_granularities", "include",
    "chunking_strategy", "n", "size", "quality", "style", "background", "input_fidelity",
    "output_format", "output_compression", "partial_images",
))  # fmt: skip
"""OpenAI's own fields, as far as they are not read by the dialect."""

HARMLESS = frozenset((
    "min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens",
    "spaces_between_special_tokens", "include_stop_str_in_output", "length_penalty", "cache_salt",
    "documents", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "thinking", "enable_thinking", "thinking_budget", "include_reasoning",
    "truncate", "truncate_prompt_tokens", "normalize", "instruction",
    "use_activation", "max_tokens_per_doc", "max_chunks_per_doc", "seed", "negative_prompt",
    "guidance_scale", "num_inference_steps",
))  # fmt: skip
"""Fields that many servers add: they choose tokens, or bound or shape the answer."""


def find_code_field(body: Mapping[str, Any]) -> str | None:
    """Return the first of `CODE_FIELDS` in a body, also inside what servers unpack."""
    todo: list[tuple[str, Collection[str], Mapping[str, Any]]] = [("", CODE_FIELDS, body)]
    while todo:
        where, names, fields = todo.pop()
        for key, value in fields.items():
            name = key.lower()
            if name in names and value is not None:
                return f"{where}{key}"
            if name in _UNPACKED and isinstance(value, dict):
                todo.append((f"{where}{key}.", _UNPACKED[name], value))
    return None


def check_code(body: Mapping[str, Any]) -> None:
    """Raise Forbidden if a body holds what only an administrator may send to an engine."""
    if (found := find_code_field(body)) is not None:
        _refuse_code(found)


def take_tools(
    tools: Iterable[dict[str, Any] | None], passed_over: list[str]
) -> list[dict[str, Any]]:
    """Return the tools that the client runs; others, such as `web_search`, are `passed_over`.

    A custom tool becomes a function of one text. Who may send code keeps all types. Raises
    Forbidden for a function that an engine would run.
    """
    given = [
        make_function(tool, f"tools[{number}]", passed_over)
        for number, tool in enumerate(tools)
        if tool is not None
    ]
    kinds = [tool.get("type") or "function" for tool in given]
    if not may_send_code.get():
        passed_over += [str(kind) for kind in kinds if kind not in RUN_HERE]
        given = [tool for tool, kind in zip(given, kinds, strict=True) if kind in RUN_HERE]
    check_tools_run_here(given)
    return given


def find_customs(tools: Iterable[Mapping[str, Any] | None]) -> frozenset[str]:
    """Return the names of the custom tools, in either API's form."""
    given = [tool.get("custom", tool) for tool in tools if tool and tool.get("type") == "custom"]
    return frozenset(str(one.get("name") or "") for one in given if isinstance(one, Mapping))


def make_function(tool: dict[str, Any], where: str, passed_over: list[str]) -> dict[str, Any]:
    """Return a custom tool of OpenAI's, in either API's form, as a function with the text `input`.

    Its grammar is told to the model, and not enforced, so that its place is `passed_over`.
    """
    if tool.get("name") and "function" not in tool and tool.get("type") in (None, "function"):
        known = ("name", "description", "parameters")  # the form of other APIs
        said = {"parameters": tool.get("input_schema")} | {x: tool[x] for x in known if x in tool}
        return {"type": "function", "function": {x: y for x, y in said.items() if y is not None}}
    custom = tool.get("custom", tool)
    if tool.get("type") != "custom" or not isinstance(custom, Mapping):
        return tool
    text, form = str(custom.get("description") or ""), custom.get("format")
    if isinstance(form, Mapping):
        form = form.get("grammar", form)  # Chat Completions nests it once more
        if isinstance(form, Mapping) and isinstance(form.get("definition"), str):
            passed_over.append(f"{where}.format")
            text += f"\n\n`input` follows this {form.get('syntax')} grammar:\n{form['definition']}"
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}}
    function = {"name": custom.get("name") or "", "description": text.strip()}
    return {
        "type": "function",
        "function": function | {"parameters": parameters | {"required": ["input"]}},
    }


def check_tools_run_here(tools: Iterable[object], where: str = "tools") -> None:
    """Raise Forbidden for tools that an engine, and not the client, would run, as those of MCP."""
    for number, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            continue
        if (tool.get("type") or "function") not in RUN_HERE:
            _refuse_code(f"{where}[{number}] of type {tool['type']}")
        function = tool.get("function")
        for fields in (tool, function if isinstance(function, Mapping) else {}):
            for name in fields:
                if name.lower() in _RUN_ELSEWHERE:
                    _refuse_code(f"{where}[{number}].{name}")


def check_nested(where: str, fields: Mapping[str, Any]) -> None:
    """Raise Forbidden for the same in the parts of a body: a message, a call, a choice of tools."""
    if (found := find_code_field(fields)) is not None:
        _refuse_code(f"{where}.{found}")
    for name, value in fields.items():
        if name.lower() == "tools" and isinstance(value, list):
            check_tools_run_here(value, f"{where}.{name}")
        elif name.lower() == "allowed_tools" and isinstance(value, Mapping):
            check_nested(f"{where}.{name}", value)


def _refuse_code(found: str) -> None:
    if not may_send_code.get():
        raise Forbidden(
            f"cannot pass on '{found}': an engine may run it as code, or open files and addresses "
            "in it",
            hint="start the server with --inspect-code, and send it with a key that has the scope "
            "'admin'",
        )


def is_passed(name: str, passed: Collection[str | None]) -> bool:
    """Return whether an engine is sent a field; `passed` are those of its traits."""
    is_open = may_send_code.get() if name in CODE_FIELDS else may_use_engine.get()
    return is_open or name in STANDARD or name in passed


def pass_fields(
    fields: Mapping[str, Any], passed: Collection[str | None]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the fields that an engine is sent, within their limits, and the others' names.

    Raises BadRequest.
    """
    ignored = tuple(name for name in fields if not is_passed(name, passed))
    return {name: fit_field(name, x) for name, x in fields.items() if name not in ignored}, ignored
