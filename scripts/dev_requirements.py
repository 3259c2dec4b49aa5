"""Print the packages of a dependency group (pip before 25.1 cannot read groups itself)."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())
print("\n".join(project["dependency-groups"][sys.argv[1] if len(sys.argv) > 1 else "dev"]))
