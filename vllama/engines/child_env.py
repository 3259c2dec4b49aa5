"""The environment of an engine process: an allow-list, never the user's whole environment.

A variable such as `HOST` or `PORT` in the user's shell would override arguments of some servers, so
only variables that are known to be harmless are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping

ALLOWED = frozenset({
    "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "DYLD_LIBRARY_PATH",
    "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "HOME", "HSA_OVERRIDE_GFX_VERSION", "LANG",
    "LD_LIBRARY_PATH", "LOGNAME", "OMP_WAIT_POLICY", "PATH", "ROCR_VISIBLE_DEVICES",
    "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME",
})  # fmt: skip
PREFIXES = ("GGML_", "GOMP_", "KMP_", "LC_", "MESA_", "NCCL_", "NVIDIA_", "RADV_", "VK_")


def build_child_env(
    environ: Mapping[str, str], *, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the allowed part of `environ`, with `extra` on top."""
    env = {
        name: value
        for name, value in environ.items()
        if name in ALLOWED or name.startswith(PREFIXES)
    }
    env.update(extra or {})
    return env
