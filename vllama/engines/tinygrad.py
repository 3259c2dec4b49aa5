"""tinygrad through `python -m tinygrad.llm --serve`: a small engine for every kind of device.

tinygrad 0.13 serves chats of GGUF models only. It reads the messages, `max_tokens` and
`temperature` of a request, writes the conversation in the form of the tokenizer's family instead of
the model's template (so tools are not shown), and closes the connection on a bad request. While it
answers one request it answers nothing else. See docs/reference/engines.md#tinygrad.

Its server would listen on all interfaces, without a key, and has no option against that. Therefore
it is started through a few lines that give it the loopback address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllama.chat.engine.traits import SchemaStyle, Stops, Traits
from vllama.engines.base import Engine, FailurePattern, Overhead, Settings
from vllama.engines.failures import make_patterns
from vllama.engines.package_server import PackageServer
from vllama.engines.recipe import Recipe, Wheels
from vllama.machine.environments.layout import Step
from vllama.machine.types import Platform
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.supervise.spec import Endpoint, Fault, HttpProbe

MIB = 1024**2
TOKENIZERS = frozenset(
    {
        "llama3", "llama-v3", "llama-bpe", "qwen2", "qwen35", "qwen35moe", "olmo", "kimi-k2",
        "tekken", "glm4",
    }
)  # fmt: skip
"""Families whose text it can split into tokens, as GGUF's `tokenizer.ggml.pre` names them."""

ON_LOOPBACK = """\
import tinygrad.llm.cli as cli
class Local(cli.LLMServer):
    def __init__(self, address, *rest): super().__init__(("{host}", address[1]), *rest)
cli.LLMServer = Local
cli.main()
"""

FAILURES = make_patterns(
    (r"Invalid tokenizer preset '([^']+)'", "tinygrad does not support the tokenizer '{0}'",
     "use --engine llama.cpp", Fault.ARCHITECTURE),
    (r"No module named 'tinygrad\.llm\.kernels'",
     "this release of tinygrad is incomplete (0.14.0 lacks tinygrad.llm.kernels)",
     "to reinstall it: vllama engines install tinygrad", Fault.MISMATCH),
    (r"FileNotFoundError: \[Errno 2\] No such file or directory: '(clang|cc|gcc)\S*'",
     "it compiles for the CPU with {0}, which is not on PATH",
     "install clang (Debian, Ubuntu: apt install clang)", Fault.MISMATCH),
    (r"(?:NotImplementedError|KeyError|ValueError|AssertionError): (.+)",
     "it cannot load the model ({0})", "use --engine llama.cpp", Fault.ARCHITECTURE),
)  # fmt: skip
RECIPE = Recipe(
    wheels=(
        Wheels(
            steps=(Step(requirements=("tinygrad==0.13.0", "jinja2")),),
            download_bytes=10 * MIB,
            disk_bytes=70 * MIB,
            programs=("clang",),
            check=("python", "-I", "-c", "import tinygrad.llm.cli"),
            note="it compiles for the CPU with clang",
        ),
    ),
    by_hand="pip install tinygrad==0.13.0 jinja2",
)


@dataclass(frozen=True, kw_only=True)
class Tinygrad(PackageServer):
    """Adapter of tinygrad's `llm` server."""

    name: str = "tinygrad"
    title: str = "tinygrad"
    formats: tuple[Format, ...] = (Format.GGUF,)
    overhead: Overhead = Overhead(fixed_bytes=300 * MIB, logits_rows=1, logprobs_take_memory=False)
    failures: tuple[FailurePattern, ...] = FAILURES
    install: Recipe = RECIPE
    distributions: tuple[str, ...] = ("tinygrad",)
    # any other path answers 200 with its page, this one only when the model was warmed up
    ready: HttpProbe = HttpProbe(path="/v1/models")
    always_offloads: bool = True  # it finds the machine's devices itself

    def preference(self, platform: Platform) -> tuple[int, str]:
        """Return 0: other engines do more with the same files."""
        return 0, "used only with --engine tinygrad: other engines are faster and support more"

    def refuses(self, platform: Platform, info: ModelInfo) -> str | None:
        """Refuse models whose tokenizer it does not know, before anything is loaded."""
        family = info.metadata.get("tokenizer.ggml.pre")
        if family is None or family in TOKENIZERS:
            return None
        return f"it does not support the model's tokenizer ({family})"

    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Keep it on loopback; it takes a path that is not absolute for a URL."""
        return (
            "-c", ON_LOOPBACK.format(host=endpoint.host), "--model", bundle.path,
            "--max_context", settings.context_length, "--serve", endpoint.port,
        )  # fmt: skip

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Name the compiler, and the CPU where no layers go to a GPU."""
        return {"CC": "clang"} | ({} if settings.gpu_layers else {"DEV": "CPU"})

    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare the little that it reads of a request."""
        return Traits(
            context_length=settings.context_length,
            parameters={"temperature": "temperature", "max_tokens": "max_tokens"},
            schema_style=SchemaStyle.NONE,
            stops=Stops.UNKNOWN,
            formats_completions=False,
            completes=False,
            takes_tools=False,
            parses_tools=False,
            splits_reasoning=False,
            takes_nulls=False,
            takes_logprobs=False,
            roles=frozenset({"system", "user", "assistant"}),
        )


ENGINE: Engine = Tinygrad()
