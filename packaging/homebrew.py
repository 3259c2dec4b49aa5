"""Print the Homebrew formula of a release: python packaging/homebrew.py dist/NAME.tar.gz

Each dependency is a resource with its checksum, as Homebrew requires. The versions are those that
`uv lock` chooses now.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PYTHON = "3.13"
ENVIRONMENTS = [
    f"python_version == '{PYTHON}' and sys_platform == '{system}'" for system in ("darwin", "linux")
]
FORMULA = """\
class Vllama < Formula
  include Language::Python::Virtualenv

  desc "{description}"
  homepage "https://pypi.org/project/{name}/"
  url "https://files.pythonhosted.org/packages/source/{letter}/{name}/{file}"
  sha256 "{sha256}"
  license "{license}"

  depends_on "rust" => :build
  depends_on "python@{python}"

{resources}
  def install
    virtualenv_install_with_resources
  end

  service do
    run [opt_bin/"vllama", "serve"]
    keep_alive true
    log_path var/"log/vllama.log"
    error_log_path var/"log/vllama.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/vllama --version")
  end
end
"""
RESOURCE = """\
  resource "{name}" do
    url "{url}"
    sha256 "{sha256}"
  end
"""


def main(sdist: Path) -> None:
    """Print the formula for `sdist`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = project["name"]
    print(
        FORMULA.format(
            description=project["description"].partition(":")[0],
            name=name,
            letter=name[0],
            file=sdist.name,
            sha256=hashlib.sha256(sdist.read_bytes()).hexdigest(),
            license=project["license"],
            python=PYTHON,
            resources="\n".join(
                RESOURCE.format(
                    name=package["name"],
                    url=package["sdist"]["url"],
                    sha256=package["sdist"]["hash"].removeprefix("sha256:"),
                )
                for package in lock(project)
            ),
        ),
        end="",
    )


def lock(project: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the dependencies as uv resolves them for Homebrew's Python, by name."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted = "\n".join(f"  {requirement!r}," for requirement in project["dependencies"])
        text = (
            '[project]\nname = "locked"\nversion = "0"\nrequires-python = ">=3.11"\n'
            f"dependencies = [\n{wanted}\n]\n[tool.uv]\nenvironments = {ENVIRONMENTS}\n"
        )
        Path(scratch, "pyproject.toml").write_text(text)
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "lock", "--quiet"], cwd=scratch, check=True)
        packages = tomllib.loads(Path(scratch, "uv.lock").read_text())["package"]
    missing = [p["name"] for p in packages if "sdist" not in p and "virtual" not in p["source"]]
    if missing:
        sys.exit(f"no source distribution: {', '.join(missing)}")
    return [package for package in packages if "sdist" in package]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
