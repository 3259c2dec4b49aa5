"""Chat templates: what they say about a model, and the ones of well-known families.

Ollama derives the same capabilities from its Go templates: a template that mentions tools takes
tools, one with think tags thinks. A model whose files bring no template gets that of its family,
which shows in its vocabulary: the tokens that mark turns are control tokens there. A row of `KNOWN`
matches if all its marks are such tokens, and the first matching row wins, so a row whose marks
include another row's comes before it. The formats are those of the makers' own templates on the hub
and of their documentation. None of them shows tools to a model: there the members of a family
differ.

A pretrained model may have the tokens of a family without knowing what they are for. A Modelfile
with `TEMPLATE {{ .Prompt }}` gives such a model its bare text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from vllama.base.errors import BadModelFile
from vllama.models.limits import MOST_TEMPLATE_CHARS
from vllama.models.types import Capability

_THINKING_FAMILIES = frozenset({"gptoss", "gpt-oss", "gpt_oss"})


def check_template_length(template: str | None) -> str | None:
    """Return the chat template of a model's file. Raises BadModelFile if it is no such thing."""
    if template is not None and len(template) > MOST_TEMPLATE_CHARS:
        raise BadModelFile(
            f"cannot use the model: its chat template is longer than {MOST_TEMPLATE_CHARS}",
            hint="download the model from its publisher",
        )
    return template


def read_template_capabilities(template: str | None, architecture: str) -> set[Capability]:
    """Read from a chat template whether it takes tools and marks thinking."""
    # not at the top: the stores come here too, and no template is read before the first request
    from vllama.chat.templates.template_style import marks_thinking, takes_tools

    found: set[Capability] = set()
    if takes_tools(template or ""):
        found.add(Capability.TOOLS)
    if architecture in _THINKING_FAMILIES or marks_thinking(template or ""):
        found.add(Capability.THINKING)
    return found


def find_stops(template: str) -> list[str]:
    """Return the marks of turns in a plain template of a known family, [] for any other template.

    Ollama gives them as `stop` to a model that is created from a file whose template it recognizes.
    It knows no template with tools or thinking.
    """
    from vllama.chat.templates.template_style import marks_thinking, takes_tools

    if takes_tools(template) or marks_thinking(template):
        return []
    for row in KNOWN:
        marks = (*row.marks, row.end)
        if all(mark in template for mark in marks):
            return list(marks)
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTemplate:
    """A family's template in Jinja, and the tokens by which the family is recognized.

    `end` is the token that ends a turn of the assistant. `sentencepiece`: the row is for that kind
    of tokenizer only, or, if False, for any other only.
    """

    family: str
    marks: tuple[str, ...]
    end: str
    template: str
    sentencepiece: bool | None = None


def find_known_template(tokens: Collection[str], *, sentencepiece: bool) -> KnownTemplate | None:
    """Return the row of a vocabulary with these control tokens, None if there is none."""
    for row in KNOWN:
        if row.sentencepiece in (None, sentencepiece) and all(
            mark in tokens for mark in (*row.marks, row.end)
        ):
            return row
    return None


def _turns(
    opening: str, closing: str, *, begin: str = "", assistant: str = "assistant", text: str = ""
) -> str:
    """Return the template of a format in which every turn has the same form.

    ROLE in `opening` stands for the role; `assistant` is what the model's own is called there.
    """
    text = text or "m.content or ''"
    role = f"{{{{ '{assistant}' if m.role == 'assistant' else m.role }}}}"
    return (
        f"{begin}{{% for m in messages %}}{opening.replace('ROLE', role)}{{{{ {text} }}}}{closing}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{opening.replace('ROLE', assistant)}"
        f"{{% endif %}}"
    )


_BOS = "{{ bos_token }}"
_TRIMMED = "(m.content or '') | trim"
_CHATML = _turns("<|im_start|>ROLE\n", "<|im_end|>\n")
# what a model thought in earlier turns is not shown to it again
_ANSWER = "(m.content or '').split('</think>')[-1]"
_CHATML_THINKS = _CHATML.replace("m.content or ''", f"{_ANSWER}.lstrip('\\n')").replace(
    "{% endif %}",
    "{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}",
)
# its beginning is marked, its turns are words
_SMOLVLM = (
    _turns("ROLE: ", "<end_of_utterance>\n", begin="<|im_start|>")
    .replace("m.role }}", "m.role | capitalize }}")
    .replace("'assistant' if", "'Assistant' if")
    .replace("assistant: ", "Assistant:")
)

# it knows no system message: what that says goes before what the user says next
_GEMMA = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}"
    "{% set ns.system = ns.system + (m.content or '') | trim + '\\n\\n' %}"
    "{% elif m.role == 'assistant' %}"
    "<start_of_turn>model\n{{ (m.content or '') | trim }}<end_of_turn>\n"
    "{% else %}"
    "<start_of_turn>user\n{{ ns.system }}{{ (m.content or '') | trim }}<end_of_turn>\n"
    "{% set ns.system = '' %}"
    "{% endif %}{% endfor %}"
    "{% if ns.system %}<start_of_turn>user\n{{ ns.system | trim }}<end_of_turn>\n{% endif %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

# the system message goes before the last of the user's
_MISTRAL = (
    "{{ bos_token }}{% set ns = namespace(system='', last=-1) %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = ns.system + (m.content or '') + '\\n\\n' %}"
    "{% elif m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}SPACE{{ m.content or '' }}</s>"
    "{% elif m.role != 'system' %}[INST]SPACE{% if loop.index0 == ns.last %}{{ ns.system }}"
    "{% endif %}{{ m.content or '' }}[/INST]{% endif %}{% endfor %}"
    "{% if ns.last == -1 and ns.system %}[INST]SPACE{{ ns.system | trim }}[/INST]{% endif %}"
)
# later versions have marks for it
_MISTRAL_7 = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}[SYSTEM_PROMPT]SPACE{{ m.content or '' }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'assistant' %}SPACE{{ m.content or '' }}</s>"
    "{% else %}[INST]SPACE{{ m.content or '' }}[/INST]{% endif %}{% endfor %}"
)

_DEEPSEEK = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ '\\n\\n' if ns.system }}{{ m.content or '' }}"
    "{% set ns.system = 'said' %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "<｜Assistant｜>{{ ANSWER }}<｜end▁of▁sentence｜>"
    "{% elif m.role != 'system' %}<｜User｜>{{ m.content or '' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>OPENING{% endif %}"
)
_THINKS_OR_NOT = (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}"
)

_COMMAND_R = (
    "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>"
    "{% if m.role == 'system' %}<|SYSTEM_TOKEN|>{% elif m.role == 'assistant' %}<|CHATBOT_TOKEN|>"
    "{% else %}<|USER_TOKEN|>{% endif %}{{ (m.content or '') | trim }}<|END_OF_TURN_TOKEN|>"
    "{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)

# the instructions of a conversation are the developer's; the system's message is always this one
_HARMONY = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\n"
    "{% if strftime_now is defined %}Current date: {{ strftime_now('%Y-%m-%d') }}\n{% endif %}"
    "{{ '\\n' }}Reasoning: {{ reasoning_effort or 'medium' }}\n\n"
    "# Valid channels: analysis, commentary, final. "
    "Channel must be included for every message.<|end|>"
    "{% for m in messages %}{% if m.role in ('system', 'developer') %}"
    "<|start|>developer<|message|># Instructions\n\n{{ m.content or '' }}<|end|>"
    "{% elif m.role == 'assistant' %}"
    "{% if loop.last and m.thinking %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content or '' }}<|end|>"
    "{% else %}<|start|>user<|message|>{{ m.content or '' }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

_ROWS = (
    ("harmony", ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"), "<|return|>", _HARMONY),
    ("gemma 4", ("<|turn>",), "<turn|>",
     _turns("<|turn>ROLE\n", "<turn|>\n", begin=_BOS, assistant="model", text=_TRIMMED)),
    ("gemma", ("<start_of_turn>",), "<end_of_turn>", _GEMMA),
    ("llama 4", ("<|header_start|>", "<|header_end|>"), "<|eot|>",
     _turns("<|header_start|>ROLE<|header_end|>\n\n", "<|eot|>", begin=_BOS, text=_TRIMMED)),
    ("llama 3", ("<|start_header_id|>", "<|end_header_id|>"), "<|eot_id|>",
     _turns("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>",
            begin=_BOS, text=_TRIMMED)),
    ("phi-4", ("<|im_start|>", "<|im_sep|>"), "<|im_end|>",
     _turns("<|im_start|>ROLE<|im_sep|>", "<|im_end|>")),
    ("kimi k2", ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"), "<|im_end|>",
     _turns("<|im_ROLE|>ROLE<|im_middle|>", "<|im_end|>")),
    ("deepseek, with thinking", ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
     "<｜end▁of▁sentence｜>",
     _DEEPSEEK.replace("ANSWER", _ANSWER).replace("OPENING", _THINKS_OR_NOT)),
    ("deepseek", ("<｜User｜>", "<｜Assistant｜>"), "<｜end▁of▁sentence｜>",
     _DEEPSEEK.replace("ANSWER", "m.content or ''").replace("OPENING", "")),
    ("smolvlm", ("<|im_start|>",), "<end_of_utterance>", _SMOLVLM),
    ("ChatML, with thinking", ("<|im_start|>", "<think>", "</think>"), "<|im_end|>",
     _CHATML_THINKS),
    ("ChatML", ("<|im_start|>",), "<|im_end|>", _CHATML),
    ("command-r",
     ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
     "<|END_OF_TURN_TOKEN|>", _COMMAND_R),
    ("granite", ("<|start_of_role|>", "<|end_of_role|>"), "<|end_of_text|>",
     _turns("<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n")),
    ("phi-4-mini", ("<|user|>", "<|assistant|>", "<|tool_call|>"), "<|end|>",
     _turns("<|ROLE|>", "<|end|>")),
    ("phi-3", ("<|user|>", "<|assistant|>"), "<|end|>", _turns("<|ROLE|>\n", "<|end|>\n")),
)  # fmt: skip
"""Family, marks, end and template of the families with one tokenizer."""

KNOWN: tuple[KnownTemplate, ...] = (
    *(
        KnownTemplate(family=family, marks=marks, end=end, template=template)
        for family, marks, end, template in _ROWS
    ),
    *(
        KnownTemplate(
            family="mistral",
            marks=("[INST]", "[/INST]", *more),
            end="</s>",
            template=template.replace("SPACE", " " if sentencepiece else ""),
            sentencepiece=sentencepiece,
        )
        for more, template in (
            (("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), _MISTRAL_7),
            ((), _MISTRAL),
        )
        for sentencepiece in (True, False)
    ),
)
"""The families, the most particular first."""

MARKS = frozenset(token for row in KNOWN for token in (*row.marks, row.end))
"""All tokens by which a family is recognized."""
