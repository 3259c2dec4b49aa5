"""Make the pictures of the page in `docs/pictures`, from a real server with the demo model.

    python scripts/pictures.py

Needs what `make dev` and `make demo` install, and Chromium (Debian, Ubuntu: apt install chromium).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

import vllama

ROOT = Path(__file__).parent.parent
ENGINES = ROOT / ".venv" / "data" / "environments"  # where make demo installs
FOLDER = ROOT / "docs" / "pictures"
MODEL = "smollm2:135m"
BRIEF = "smollm2:brief"
"""The same model with parameters of its own: what two answers beside each other are shown with."""
QUESTIONS = (
    "What is machine learning? Answer in one sentence.",
    "What is the water cycle? Answer in one sentence.",
)
WIDTH = 1280
PATIENCE_MS = 120_000


def main() -> None:
    """Start a server, and photograph its page."""
    FOLDER.mkdir(exist_ok=True)
    data_dir = tempfile.mkdtemp(prefix="vllama-pictures-")
    (Path(data_dir) / "environments").symlink_to(ENGINES)
    with vllama.Server(MODEL, data_dir=data_dir) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 800})
        page.set_default_timeout(PATIENCE_MS)
        made = {
            "from": MODEL,
            "model": BRIEF,
            "system": "You are a helpful assistant.",
            "parameters": {"temperature": 0, "num_predict": 120},
        }
        httpx.post(f"{server.url}/api/create", json=made, timeout=None).raise_for_status()
        page.goto(f"{server.url}/ui/#/chat?model={BRIEF}")
        show_chat(page)
        page.screenshot(path=FOLDER / "page-chat.png")
        page.get_by_role("link", name="Models", exact=True).click()
        show_models(page)
        page.screenshot(path=FOLDER / "page-models.png", animations="disabled")
        browser.close()
    shutil.rmtree(data_dir, ignore_errors=True)


def show_chat(page: Page) -> None:
    """Have the model answer a question, and two models another one."""
    field = page.get_by_role("textbox", name="Message")
    field.fill(QUESTIONS[0])
    field.press("Enter")
    page.get_by_role("button", name="Regenerate").wait_for()
    page.get_by_role("button", name="Compare").click()
    field.fill(QUESTIONS[1])
    field.press("Enter")
    page.get_by_role("button", name="Regenerate").nth(2).wait_for()


def show_models(page: Page) -> None:
    """Open the details of the loaded model, with its plan and its measured memory."""
    page.get_by_role("heading", name="This machine", exact=True).wait_for()
    page.get_by_role("article").get_by_text("ready", exact=True).wait_for()
    page.get_by_role("button", name=MODEL, exact=True).click()
    page.get_by_text("Command", exact=True).wait_for()


if __name__ == "__main__":
    main()
