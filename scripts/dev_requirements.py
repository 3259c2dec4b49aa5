"""Print the packages of the dev group in pyproject.toml (pip before 25.1 cannot read groups)."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())
print("\n".join(project["dependency-groups"]["dev"]))
