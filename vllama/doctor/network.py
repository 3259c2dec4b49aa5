"""Checks of the hub: whether it can be reached, and whether it accepts the token."""

from __future__ import annotations

from collections.abc import Iterator

from vllama.doctor.check import Finding, ok, skipped, warning
from vllama.doctor.check import failed as failure

LIMIT_S = 6.0


def hub(endpoint: str | None, token: str | None, *, offline: bool) -> Iterator[Finding]:
    """Ask the hub for the token's owner, or without a token for any model."""
    if offline:
        yield skipped("the hub is never asked (HF_HUB_OFFLINE)")
        return
    import httpx2
    from huggingface_hub import constants

    url = (endpoint or constants.ENDPOINT).rstrip("/")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    path = "/api/whoami-v2" if token else "/api/models?limit=1"
    try:
        answer = httpx2.get(url + path, headers=headers, timeout=LIMIT_S, follow_redirects=True)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        yield warning(
            f"the hub at {url} cannot be reached ({error or type(error).__name__})",
            "check network, HTTPS_PROXY and HF_ENDPOINT; models on this disk run without it",
        )
        return
    if answer.status_code in (401, 403) and token:
        yield failure(
            f"the hub at {url} does not take the token",
            "make a new one in the hub's settings, and put it into HF_TOKEN",
        )
    elif answer.status_code >= 500:
        yield warning(f"the hub at {url} answers with HTTP {answer.status_code}", "try it later")
    elif token and answer.status_code == 404:
        yield ok(f"{url} answers; it knows no tokens")
    elif token:
        yield ok(f"{url} answers and takes the token{_whose(answer)}")
    else:
        yield ok(f"{url} answers; there is no token, which only gated and private models want")


def _whose(answer: object) -> str:
    try:
        name = answer.json().get("name")  # type: ignore[attr-defined]
    except (ValueError, AttributeError):
        return ""
    return f" of {name}" if isinstance(name, str) else ""
