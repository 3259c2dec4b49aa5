"""What any program may print when it lacks memory, or its build does not suit the machine."""

from __future__ import annotations

from vllama.engines.base import FailurePattern
from vllama.supervise.spec import Fault

# tried after an engine's own; a table that ends with a catch-all names them before that
GENERAL = (
    FailurePattern(
        pattern=r"error while loading shared libraries: (\S+):"
        r"|(?:ImportError|OSError): (\S+): cannot open shared object file",
        cause="its library {0}{1} is missing",
        hint="install the engine again, or the library",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"version [`']((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found",
        cause="it was built for a newer system ({0})",
        hint="install a build for this system, or choose another engine",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"undefined symbol: (\S+)",
        cause="the parts of its installation do not fit each other (no symbol {0})",
        hint="remove its environment and install it again",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"(?i)driver version is insufficient|NVIDIA driver on your system is too old"
        r"|forward compatibility was attempted on non supported HW",
        cause="the driver of the GPU is too old for this build",
        hint="update the driver, or install a build for an older one",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"(?i)no kernel image is available|the provided PTX was compiled with"
        r"|not compatible with the current PyTorch installation",
        cause="this build has no code for this GPU",
        hint="install a build for this GPU, or choose another engine",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"Exec format error|cannot execute binary file",
        cause="it was built for another kind of machine",
        hint="install the engine again on this machine",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"(?i)out of memory|OutOfMemoryError|\bMemoryError\b|std::bad_alloc"
        r"|Cannot allocate memory",
        cause="the model and its context do not fit into memory",
        hint="use a smaller context (--ctx) or a smaller model, or free memory",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"(?:what\(\)|Error|died):\s+(?:\[Errno 11\] )?Resource temporarily unavailable"
        r"|can't start new thread"
        r"|pthread_create failed",
        cause="it could not start a thread: too little memory, or too many processes",
        hint="free memory, use a smaller context (--ctx), or raise the limits (ulimit -v, -u)",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"(?i)address already in use",
        cause="its port was taken by another program",
        hint="try again: vllama chooses another one each time",
        retryable=True,
        fault=Fault.PORT,
    ),
)
