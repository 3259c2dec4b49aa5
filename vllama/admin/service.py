"""vllama as a service of the machine or of a user: systemd on Linux, launchd on macOS.

The unit is that of systemd.unit(5), systemd.service(5) and systemd.exec(5).
"""

from __future__ import annotations

import grp
import os
import plistlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.base.errors import ConfigError, VllamaError

NAME = "vllama.service"
RESTART_S = 10
"""Between two starts; launchd's own default, too."""
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
    confined = (*CONFINED, *ISOLATED, *list_gpu_groups()) if system else CONFINED
    lines = [
        "[Unit]",
        "Description=vllama, a server for language models",
        "Wants=network-online.target",
        "After=network-online.target",
        "# time mends much: a network or disk that is not there yet, memory that others hold",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=notify",
        f"ExecStart={' '.join(map(quote, command))}",
        "ExecReload=kill -HUP $MAINPID",
        "# vllama ends its engines itself, and needs the time for it",
        "KillMode=mixed",
        f"TimeoutStopSec={stop_timeout_s}",
        "Restart=on-failure",
        f"RestartSec={RESTART_S}",
        "# a wrong setting: another start would end in the same way",
        f"RestartPreventExitStatus={ConfigError.exit_code}",
        *confined,
        "",
        "[Install]",
        f"WantedBy={'multi-user' if system else 'default'}.target",
    ]
    return "\n".join(lines) + "\n"


def list_gpu_groups() -> list[str]:
    """Return the line that lets the service use the devices of AMD's and Intel's GPUs.

    They belong to these groups, and systemd refuses a unit with a group that does not exist.
    """
    known = {group.gr_name for group in grp.getgrall()}
    names = [name for name in ("render", "video") if name in known]
    return [f"SupplementaryGroups={' '.join(names)}"] if names else []


def quote(word: str) -> str:
    """Return a word of a command line as systemd reads it back (systemd.service(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    escaped = escaped.replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"' if not word or set(escaped) & set(" \"';\\") else escaped


LABEL = "vllama"
RUNNING_SYSTEMD = Path("/run/systemd/system")
"""Exists if and only if systemd runs the machine: sd_booted(3)."""
STOP_MARGIN_S = 30
"""Beyond the time for running answers: engines with much memory take a while to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The service as this machine knows it: its file, and the commands that act on it.

    `start` is run after the file is written, `stop` before it is removed and `forget` after. The
    user is told `hint` after an installation, and that `watch` shows the state and the log.
    """

    file: Path
    text: str
    start: tuple[tuple[str, ...], ...]
    stop: tuple[str, ...]
    forget: tuple[tuple[str, ...], ...] = ()
    watch: str
    hint: str


def make_systemd_service(
    command: Sequence[str], *, system: bool, config: Path, stop_limit_s: float
) -> Service:
    """Return the service of a Linux machine, or of one user of it.

    `config` is the user's folder of settings ($XDG_CONFIG_HOME).
    """
    folder = Path("/etc/systemd/system") if system else config / "systemd" / "user"
    control = ("systemctl",) if system else ("systemctl", "--user")
    hint = "it ends when you log out, unless: loginctl enable-linger"
    if system:
        hint = (
            f"models, engines and settings of the service are in {STATE}; install an engine "
            f"there: sudo VLLAMA_DATA_DIR={STATE} {command[0]} engines install ENGINE"
        )
    reload = (*control, "daemon-reload")
    return Service(
        file=folder / NAME,
        text=make_unit(command, system=system, stop_timeout_s=round(stop_limit_s) + STOP_MARGIN_S),
        start=(reload, (*control, "enable", NAME), (*control, "restart", NAME)),
        stop=(*control, "disable", "--now", NAME),
        forget=(reload,),
        watch=f"{' '.join(control)} status {LABEL}",
        hint=hint,
    )


def make_launchd_service(
    command: Sequence[str], *, home: Path, log: Path, search_path: str, stop_limit_s: float
) -> Service:
    """Return the service of one user of a Mac, which runs when the user logs in.

    launchd starts programs with a short PATH, so `search_path` is the one of now. A server that
    ends with an error is started again, whatever its exit code is.
    """
    file = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    domain = f"gui/{os.getuid()}"
    agent = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": {"PATH": search_path},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_S,
        "ExitTimeOut": round(stop_limit_s) + STOP_MARGIN_S,
        "ProcessType": "Interactive",  # else macOS slows it down in the background
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    return Service(
        file=file,
        text=plistlib.dumps(agent).decode(),
        start=(("launchctl", "bootstrap", domain, str(file)),),
        stop=("launchctl", "bootout", f"{domain}/{LABEL}"),
        watch=f"launchctl print {domain}/{LABEL}; tail {shlex.quote(str(log))}",
        hint="it runs while you are logged in",
    )


def check_manager(system: str) -> None:
    """Raise ConfigError if this machine has no service manager that vllama knows."""
    if system == "linux" and RUNNING_SYSTEMD.is_dir() and shutil.which("systemctl"):
        return
    if system == "darwin":
        return
    reason = "systemd does not run here" if system == "linux" else f"unknown system {system}"
    raise ConfigError(
        f"cannot manage a service: {reason}",
        hint="'vllama service show' prints the unit, for another machine or an image",
    )


def install(service: Service) -> None:
    """Write the file and start the service; an older version of it is replaced. VllamaError."""
    try:
        service.file.parent.mkdir(parents=True, exist_ok=True)
        service.file.write_text(service.text)
    except OSError as error:
        raise VllamaError(
            f"cannot write '{service.file}': {error.strerror}",
            hint="a service of the machine needs root: sudo vllama service install --system",
        ) from None
    for command in service.start:
        run(command, service.watch)


def uninstall(service: Service) -> bool:
    """Stop the service and remove its file; return False if there was none. VllamaError."""
    if not service.file.exists():
        return False
    run(service.stop, service.watch)
    service.file.unlink()
    for command in service.forget:
        run(command, service.watch)
    return True


def run(command: Sequence[str], watch: str) -> None:
    """Run a command of the service manager. Raises VllamaError with what it says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise VllamaError(
            f"cannot do '{' '.join(command)}': {said[0] if said else done.returncode}",
            hint=f"see why: {watch}",
        )
