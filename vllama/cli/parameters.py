"""Options of a request as typed after `/set parameter`: those of a Modelfile."""

from __future__ import annotations

from vllama.models.parameters import KNOWN, parse_parameter

__all__ = ["KNOWN", "parse_parameter"]
