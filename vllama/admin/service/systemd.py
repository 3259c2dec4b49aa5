"""The unit of vllama for systemd: systemd.unit(5), systemd.service(5), systemd.exec(5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

NAME = "vllama.service"
STATE = "/var/lib/vllama"

# what needs no file system of its own, so that it works in a user's own manager, too
CONFINED = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
    "UMask=0077",
)
# GPUs are devices, and compilers at run time (Triton, LLVM) make memory executable: neither
# PrivateDevices nor MemoryDenyWriteExecute
ISOLATED = (
    "DynamicUser=yes",
    "StateDirectory=vllama",
    "StateDirectoryMode=0700",
    f"WorkingDirectory={STATE}",
    f"Environment=HOME={STATE} VLLAMA_DATA_DIR={STATE} HF_HOME={STATE}/huggingface",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "ProtectProc=invisible",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "CapabilityBoundingSet=",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "DevicePolicy=closed",
    *(
        f"DeviceAllow={device} rw"
        for device in ("char-drm", "char-kfd", "char-nvidia", "char-nvidia-frontend",
                       "char-nvidia-caps", "char-nvidia-uvm")
    ),
)  # fmt: skip


def make_unit(command: Sequence[str], *, system: bool, stop_timeout_s: int) -> str:
    """Return the text of the unit that runs `command`, for the whole machine or for one user.

    `stop_timeout_s` is how long the service may take to end.
    """
    confined = (*CONFINED, *ISOLATED) if system else CONFINED
    lines = [
        "[Unit]",
        "Description=vllama, a server for language models",
        "Wants=network-online.target",
        "After=network-online.target",
        "StartLimitIntervalSec=300",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=notify",
        f"ExecStart={' '.join(map(quote, command))}",
        "ExecReload=kill -HUP $MAINPID",
        "# vllama ends its engines itself, and needs the time for it",
        "KillMode=mixed",
        f"TimeoutStopSec={stop_timeout_s}",
        "Restart=on-failure",
        "RestartSec=2",
        "# a wrong setting, a missing engine or model: another start would end in the same way",
        "RestartPreventExitStatus=2 3 4",
        *confined,
        "",
        "[Install]",
        f"WantedBy={'multi-user' if system else 'default'}.target",
    ]
    return "\n".join(lines) + "\n"


def quote(word: str) -> str:
    """Return a word of a command line as systemd reads it back (systemd.service(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    escaped = escaped.replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"' if not word or set(escaped) & set(" \"';\\") else escaped


def find_unit(*, system: bool, config: Path) -> Path:
    """Return the unit's file; `config` is the user's folder of settings ($XDG_CONFIG_HOME)."""
    return (Path("/etc/systemd/system") if system else config / "systemd" / "user") / NAME
