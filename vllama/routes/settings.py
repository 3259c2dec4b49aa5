"""The handler that lists the settings in effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.http.request import Request

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


async def list_settings(gateway: Gateway, request: Request) -> None:
    """List every setting: its value, where that comes from, and what it means; no secrets."""
    request.json(200, gateway.settings)
