"""The pages that are made from the code are not stale."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_configuration_page_is_the_table():
    script = [sys.executable, "scripts/configuration.py", "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_link_of_the_readme_leads_somewhere():
    import re

    for page in (ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
