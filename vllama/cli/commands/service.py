"""`vllama service`: the server as a service: systemd's on Linux, launchd's on macOS.

The unit is that of systemd.unit(5), systemd.service(5) and systemd.exec(5).
"""

from __future__ import annotations

import grp
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from vllama import config
from vllama.base import private
from vllama.base.errors import ConfigError, VllamaError
from vllama.cli.context import load_settings
from vllama.cli.options import option
from vllama.cli.output import say, say_aside
from vllama.config.secrets import mask

EXAMPLES = """\
\b
Examples:
  vllama service install                         for your user, with your settings
  vllama service install -- --model qwen3:8b     with arguments for serve
  sudo vllama service install --system           system-wide and sandboxed
  vllama service show --system > vllama.service
  vllama service remove

Uses systemd on Linux and launchd on macOS. Their tools show the state and the log:
'systemctl --user status vllama' and 'journalctl --user --unit vllama'; 'launchctl print
gui/$UID/vllama'. Arguments after -- go to 'vllama serve'.
"""
HOMES = (Path("/home"), Path("/root"))
"""What a confined service cannot see."""
LABEL = "vllama"
NAME = "vllama.service"
STATE = "/var/lib/vllama"
RUNNING_SYSTEMD = Path("/run/systemd/system")
"""Exists if and only if systemd runs the machine: sd_booted(3)."""
RESTART_S = 10
"""Between two starts; launchd's own default, too."""
STOP_MARGIN_S = 30
"""Beyond the time for running answers: engines with much memory take a while to end."""

UNIT = """\
[Unit]
Description=vllama, a server for language models
Wants=network-online.target
After=network-online.target
# keep retrying: the network, a disk or memory may become available later
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
ExecReload=kill -HUP $MAINPID
# an engine killed for lack of memory is restarted; the server keeps running
OOMPolicy=continue
# engines get control groups with memory limits, beside the server's own
Delegate=memory
# vllama stops its engines itself, and needs time for it
KillMode=mixed
TimeoutStopSec={stop_timeout_s}
Restart=on-failure
RestartSec={restart_s}
# invalid settings: a restart would fail the same way
RestartPreventExitStatus={final_status}
{confined}
[Install]
WantedBy={target}.target
"""
# what needs no file system of its own, so that it works in a user's own manager, too
CONFINED = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
UMask=0077
"""
# GPUs are devices, and compilers at run time (Triton, LLVM) make memory executable: neither
# PrivateDevices nor MemoryDenyWriteExecute
ISOLATED = f"""\
DynamicUser=yes
StateDirectory=vllama
StateDirectoryMode=0700
WorkingDirectory={STATE}
Environment=HOME={STATE} VLLAMA_DATA_DIR={STATE} HF_HOME={STATE}/huggingface
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
CapabilityBoundingSet=
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
DevicePolicy=closed
DeviceAllow=char-drm rw
DeviceAllow=char-kfd rw
DeviceAllow=char-nvidia rw
DeviceAllow=char-nvidia-frontend rw
DeviceAllow=char-nvidia-caps rw
DeviceAllow=char-nvidia-uvm rw
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The service as this machine knows it: its file, and the commands that act on it.

    `start` is run after the file is written, `stop` before it is removed. The user is told `hint`
    after an installation, and that `watch` shows the state and the log.
    """

    file: Path
    text: str
    start: tuple[tuple[str, ...], ...]
    stop: tuple[str, ...]
    watch: str
    hint: str


System: TypeAlias = Annotated[
    bool, option("--system", "Install for the whole machine (Linux, needs root).")
]


def install_service(context: typer.Context, system: System = False) -> None:
    """Install the service and start it."""
    made = make_service(context.obj or (), system=system)
    check_manager(sys.platform)
    install(made)
    say(f"installed and started {made.file}")
    say_aside(made.hint)
    say_aside(f"to monitor it: {made.watch}")


def show(context: typer.Context, system: System = False) -> None:
    """Print the service file, for another machine or an image."""
    say(make_service(context.obj or (), system=system).text.rstrip())


def remove(context: typer.Context, system: System = False) -> None:
    """Stop the service and remove it."""
    made = make_service(context.obj or (), system=system)
    check_manager(sys.platform)
    say(f"removed {made.file}" if uninstall(made) else "the service is not installed")


ACTIONS = {"install": install_service, "show": show, "remove": remove}


def make_service(words: Sequence[str], *, system: bool) -> Service:
    """Return the service that runs `vllama serve` with these words. Raises ConfigError."""
    settings, environ = load_settings(), config.environ()
    named = [word for word in words if not re.match(r"--(.*-file|tls-key)(=|$)", word)]
    if mask(named) != named:
        raise ConfigError(
            "cannot store a key in the service: every user of this machine can read it",
            hint="use a file, such as with --api-key-file, or set the key in config.toml",
        )
    home = Path(environ.get("HOME", "~")).expanduser()
    stop_timeout_s = round(settings.stop_limit_s) + STOP_MARGIN_S
    # how this vllama is started, independent of PATH and of the current folder
    script = Path(sys.executable).with_name("vllama")
    program = [str(script)] if script.is_file() else [sys.executable, "-m", "vllama"]
    command = [*program, "serve", *words]
    if sys.platform == "darwin":
        if system:
            raise ConfigError(
                "cannot install a system service: only user services are supported here",
                hint="omit --system",
            )
        return make_launchd_service(
            command,
            home=home,
            log=settings.log_dir / "service.log",
            search_path=environ.get("PATH", ""),
            stop_timeout_s=stop_timeout_s,
        )
    if system and any(Path(command[0]).resolve().is_relative_to(folder) for folder in HOMES):
        raise ConfigError(
            f"cannot run '{command[0]}' as a system service: it cannot read home directories",
            hint="install vllama for all users, such as in /opt/vllama, or omit --system",
        )
    user_settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return make_systemd_service(
        command, system=system, config=user_settings, stop_timeout_s=stop_timeout_s
    )


def make_systemd_service(
    command: Sequence[str], *, system: bool, config: Path, stop_timeout_s: int
) -> Service:
    """Return the service of a Linux machine, or of one user of it.

    `config` is the user's folder of settings ($XDG_CONFIG_HOME), `stop_timeout_s` is how long the
    service may take to end.
    """
    folder = Path("/etc/systemd/system") if system else config / "systemd" / "user"
    control = ("systemctl",) if system else ("systemctl", "--user")
    hint = "it stops when you log out, unless you run: loginctl enable-linger"
    if system:
        hint = (
            f"the service stores models, engines and settings in {STATE}; to install an engine "
            f"there: sudo VLLAMA_DATA_DIR={STATE} {command[0]} engines install ENGINE"
        )
    return Service(
        file=folder / NAME,
        text=UNIT.format(
            command=" ".join(map(quote, command)),
            stop_timeout_s=stop_timeout_s,
            restart_s=RESTART_S,
            final_status=ConfigError.exit_code,
            confined=CONFINED + (ISOLATED + allow_gpu_groups() if system else ""),
            target="multi-user" if system else "default",
        ),
        # enable has the manager read the file, a changed one too (systemctl(1))
        start=((*control, "enable", NAME), (*control, "restart", NAME)),
        stop=(*control, "disable", "--now", NAME),
        watch=f"{' '.join(control)} status {LABEL}",
        hint=hint,
    )


def allow_gpu_groups() -> str:
    """Return the line that lets the service use the devices of AMD's and Intel's GPUs.

    They belong to these groups, and systemd refuses a unit with a group that does not exist.
    """
    known = {group.gr_name for group in grp.getgrall()}
    names = [name for name in ("render", "video") if name in known]
    return f"SupplementaryGroups={' '.join(names)}\n" if names else ""


def quote(word: str) -> str:
    """Return a word of a command line as systemd reads it back (systemd.service(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    for sign in set(re.findall(r"[\0-\x1f\x7f-\x9f\udc80-\udcff]", word)):  # control, no UTF-8
        escaped = escaped.replace(sign, "".join(f"\\x{byte:02x}" for byte in os.fsencode(sign)))
    return f'"{escaped}"' if not word or set(escaped) & set(" \"';\\") else escaped


def make_launchd_service(
    command: Sequence[str], *, home: Path, log: Path, search_path: str, stop_timeout_s: int
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
        "ExitTimeOut": stop_timeout_s,
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
    reason = "systemd is not running" if system == "linux" else f"unknown system {system}"
    raise ConfigError(
        f"cannot manage a service: {reason}",
        hint="'vllama service show' prints the service file for another machine or an image",
    )


def install(service: Service) -> None:
    """Write the file and start the service; an older version of it is replaced. VllamaError."""
    try:
        service.file.parent.mkdir(parents=True, exist_ok=True)
        private.replace(service.file, service.text, mode=0o644, sync=True)
    except OSError as error:
        raise VllamaError(
            f"cannot write '{service.file}': {error.strerror}",
            hint="a system service needs root: sudo vllama service install --system",
        ) from None
    for command in service.start:
        run(command, service.watch)


def uninstall(service: Service) -> bool:
    """Stop the service and remove its file; return False if there was none. VllamaError."""
    if not service.file.exists():
        return False
    run(service.stop, service.watch)
    service.file.unlink()
    return True


def run(command: Sequence[str], watch: str) -> None:
    """Run a command of the service manager. Raises VllamaError with what it says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise VllamaError(
            f"'{' '.join(command)}' failed: {said[0] if said else done.returncode}",
            hint=f"see the reason: {watch}",
        )
