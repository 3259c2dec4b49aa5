"""From nothing to an OpenAI-compatible endpoint on a remote host, over ssh.

    python deploy.py me@gpu-host --model Qwen/Qwen3-8B      install, start, open a tunnel, try it
    python deploy.py me@gpu-host --status                   is it ready? reopen the tunnel
    python deploy.py me@gpu-host --destroy                  stop and remove it; --purge: engines too

Running it again brings the host up to date; the key stays. Needs nothing here but Python and ssh,
and nothing there but a Linux user: no root, no Docker.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY_FILE = ".config/vllama/deployed-key"
LOG = ".local/state/vllama-deployed.log"
PID_FILE = ".local/state/vllama-deployed.pid"
READY_LIMIT_S = 3600  # the download of a large model
POLL_S = 2.0
PATH = 'export PATH="$HOME/.local/bin:$PATH"; '

INSTALL_UV = """\
command -v uv >/dev/null && exit 0
venv="$HOME/.local/share/vllama-uv"
if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install --quiet uv; then
  echo "uv is missing, and python3 cannot install it; see https://docs.astral.sh/uv" >&2
  exit 1
fi
mkdir -p "$HOME/.local/bin"
ln -sf "$venv/bin/uv" "$HOME/.local/bin/uv"
"""
STOP = f"""\
if [ -f {PID_FILE} ]; then
  pid=$(cat {PID_FILE})
  if grep --quiet --null-data '^vllama$\\|/vllama$' /proc/$pid/cmdline 2>/dev/null; then
    kill $pid
    while kill -0 $pid 2>/dev/null; do sleep 0.2; done
  fi
  rm -f {PID_FILE}
fi
"""
START = f"""\
mkdir -p .local/state
setsid nohup {{command}} >{LOG} 2>&1 </dev/null &
echo $! >{PID_FILE}
"""
REMOVE = f"""\
if [ -d .local/share/vllama-uv ]; then  # uv came with us
  uv cache clean --quiet
  rm -rf .local/share/vllama-uv .local/bin/uv
fi
rm -rf .cache/vllama-deploy {KEY_FILE} {LOG}
"""


@dataclass(frozen=True)
class Host:
    """The remote machine, by way of one ssh connection that all commands and the tunnel share."""

    name: str
    options: tuple[str, ...]
    folder: Path

    @property
    def ssh(self) -> list[str]:
        """The command line of ssh, up to the host."""
        control = f"ControlPath={self.folder}/%C"
        return ["ssh", *self.options, "-o", control, self.name]

    def connect(self) -> None:
        """Open the shared connection, unless it is open already."""
        if subprocess.run([*self.ssh, "-O", "check"], capture_output=True, check=False).returncode:
            master = ("-o", "ControlMaster=yes", "-o", "ServerAliveInterval=15", "-f", "-N")
            run([*self.ssh[:1], *master, *self.ssh[1:]], f"cannot log in to {self.name}")

    def disconnect(self) -> None:
        """Close the shared connection, and with it the tunnel."""
        subprocess.run([*self.ssh, "-O", "exit"], capture_output=True, check=False)

    def open_tunnel(self, port: int, remote_port: int) -> None:
        """Let a local port lead to the server."""
        forward = f"127.0.0.1:{port}:127.0.0.1:{remote_port}"
        subprocess.run([*self.ssh, "-O", "cancel", "-L", forward], capture_output=True, check=False)
        run([*self.ssh, "-O", "forward", "-L", forward], f"cannot open port {port} here")

    def run(self, script: str, *, why: str, stdin: str = "") -> str:
        """Run a script of the shell in the home folder; return what it prints."""
        command = f"{PATH}cd; {script}" if stdin else f"{PATH}cd; set -e\n{script}"
        return run([*self.ssh, command], f"{self.name}: {why}", stdin=stdin)

    def test(self, script: str) -> bool:
        """Tell whether a script succeeds."""
        done = subprocess.run([*self.ssh, PATH + script], capture_output=True, check=False)
        return done.returncode == 0

    def copy(self, file: Path) -> str:
        """Copy a file into the home folder; return its path there."""
        say(f"copying {file.name}")
        with file.open("rb") as content:
            target = f".cache/vllama-deploy/{file.name}"
            command = f"cd; mkdir -p .cache/vllama-deploy; cat >{shlex.quote(target)}"
            if subprocess.run([*self.ssh, command], stdin=content, check=False).returncode:
                sys.exit(f"{self.name}: cannot copy {file}")
        return target


def main() -> int:
    """Do what the command line says."""
    arguments = parse_arguments()
    folder = Path.home() / ".cache" / "vllama-deploy"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    host = Host(arguments.host, tuple(arguments.ssh_option), folder)
    host.connect()
    if arguments.destroy:
        return destroy(host, purge=arguments.purge)
    if not arguments.status:
        install(host, arguments)
        start(host, arguments)
    return show(host, arguments)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("host", help="[USER@]HOST, as for ssh")
    parser.add_argument("--model", help="model to serve")
    parser.add_argument("--engine", help="vllm where there is an NVIDIA GPU, else llama-server")
    parser.add_argument("--port", type=int, default=11434, help="of the server (11434)")
    parser.add_argument("--local-port", type=int, help="of the tunnel here (as --port)")
    parser.add_argument("--url", help="where clients reach it, instead of a tunnel: https://…")
    parser.add_argument("--package", default="vllama-serve", help="what to install; or a wheel")
    parser.add_argument("--serve-option", action="append", default=[], help="more for vllama serve")
    parser.add_argument("--ssh-option", action="append", default=[], help="more for ssh: -p2222")
    parser.add_argument("--status", action="store_true", help="only see whether it is ready")
    parser.add_argument("--destroy", action="store_true", help="stop and remove the server")
    parser.add_argument("--purge", action="store_true", help="with --destroy: its data folder too")
    arguments = parser.parse_args()
    arguments.local_port = arguments.local_port or arguments.port
    if not (arguments.model or arguments.status or arguments.destroy):
        parser.error("name the model to serve: --model NAME")
    return arguments


def install(host: Host, arguments: argparse.Namespace) -> None:
    """Install uv, vllama and an engine, and make a key."""
    say("installing uv")
    host.run(INSTALL_UV, why="cannot install uv")
    package = arguments.package
    if Path(package).is_file():
        package = host.copy(Path(package))
    say(f"installing {arguments.package}")
    upgrade = f"uv tool install --quiet --force --upgrade {shlex.quote(package)}"
    host.run(upgrade, why="cannot install vllama")
    has_gpu = host.test("nvidia-smi -L | grep --quiet GPU")
    engine = arguments.engine or ("vllm" if has_gpu else "llama-server")
    say(f"installing {engine}")
    host.run(f"vllama engines install {shlex.quote(engine)} --yes", why=f"cannot install {engine}")
    keep = f"umask 077; mkdir -p .config/vllama; [ -s {KEY_FILE} ] || cat >{KEY_FILE}"
    # by standard input: others can see the arguments of a command
    host.run(keep, why="cannot write the key", stdin=f"sk-{secrets.token_urlsafe(32)}\n")


def start(host: Host, arguments: argparse.Namespace) -> None:
    """Start the server: as a service of systemd if the host has one for users."""
    home = host.run("pwd", why="cannot find the home folder").strip()
    words = ["--model", arguments.model, "--port", str(arguments.port)]
    words += ["--api-key-file", f"{home}/{KEY_FILE}", *arguments.serve_option]
    serve = shlex.join(words)
    host.run(STOP, why="cannot stop the server of before")
    if host.test("systemctl --user show-environment"):
        say("starting it as a service")
        host.test("loginctl enable-linger")  # it goes on after the logout, where that is allowed
        host.run(f"vllama service install -- {serve}", why="cannot start the service")
        return
    say(
        "systemd runs no services of users there: starting it without; it will not survive a reboot"
    )
    host.run(START.format(command=f"vllama serve {serve}"), why="cannot start the server")


def show(host: Host, arguments: argparse.Namespace) -> int:
    """Open the tunnel, wait until the server is ready, try it, and print how to use it."""
    key = host.run(f"cat {KEY_FILE}", why="nothing is deployed there").strip()
    if not (url := arguments.url):
        host.open_tunnel(arguments.local_port, arguments.port)
        url = f"http://127.0.0.1:{arguments.local_port}"
    if not wait_until_ready(host, url, key):
        return 1
    model = arguments.model or ask(f"{url}/v1/models", key)["data"][0]["id"]
    question = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
    usage = ask(f"{url}/v1/chat/completions", key, question)["usage"]
    say(f"{model} answers: {usage['completion_tokens']} tokens")
    print(f"export OPENAI_BASE_URL={url}/v1\nexport OPENAI_API_KEY={key}")
    return 0


def wait_until_ready(host: Host, url: str, key: str) -> bool:
    """Wait for the server to have loaded its model; print its log if it ends instead."""
    say("waiting until the model is loaded")
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        try:
            if ask(f"{url}/readyz", key)["status"] == "ready":
                return True
        except (OSError, ValueError):  # not listening yet, or 503
            pass
        if not is_running(host):
            break
        time.sleep(POLL_S)
    say("the server is not ready; the end of its log:")
    print(host.run("vllama logs --lines 30 || true", why="cannot read the log"), file=sys.stderr)
    return False


def is_running(host: Host) -> bool:
    """Tell whether the server's process, or its service, runs."""
    return host.test(
        f"cd; kill -0 $(cat {PID_FILE}) 2>/dev/null || systemctl --user is-active vllama"
    )


def destroy(host: Host, *, purge: bool) -> int:
    """Remove what `install` and `start` have made; the data folder only with `purge`.

    Models in the hub's cache stay, since other programs use them too.
    """
    say("stopping the server")
    if host.test("systemctl --user show-environment"):
        host.test("vllama service remove")
    host.run(STOP, why="cannot stop the server")
    say("removing vllama" + (" and its data folder" if purge else "; engines and models stay"))
    host.test("uv tool uninstall vllama-serve")
    host.run(REMOVE, why="cannot remove everything")
    if purge:
        host.run("rm -rf .local/share/vllama", why="cannot remove the data folder")
    host.disconnect()
    return 0


def ask(url: str, key: str, body: dict[str, Any] | None = None) -> Any:
    """Return the JSON that a route answers. Raises OSError, ValueError."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
        return json.load(answer)


def run(command: list[str], why: str, stdin: str = "") -> str:
    """Return what a command prints on stdout; end with `why` if it fails."""
    done = subprocess.run(command, input=stdin, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{why} (exit code {done.returncode})")
    return done.stdout


def say(text: str) -> None:
    """Tell the user what is going on."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
