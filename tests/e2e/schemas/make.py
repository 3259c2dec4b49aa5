"""Makes `schemas.json`: schemas that libraries and public MCP servers produce, by running them.

`make.py FOLDER`: it has `npm/NAME/node_modules` and `py/NAME/bin`, one folder for each package, as
`npm install --ignore-scripts` and `pip install` make them, `npm/zod-set` (see `libraries.mjs`), and
`py/lib` with pydantic and msgspec. Prose is left out: descriptions, titles, examples, defaults.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROSE = {
    "description", "title", "examples", "example", "default", "$comment", "markdownDescription",
    "enumDescriptions", "deprecated", "readOnly", "errorMessage",
}  # fmt: skip
MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
MOST_NAMES, MOST_TOOLS = 12, 10
SERVERS: dict[str, tuple[str, ...]] = {  # its arguments; the program is the package's own
    "@modelcontextprotocol/server-filesystem": ("/tmp",),
    "@modelcontextprotocol/server-postgres": ("postgresql://localhost/none",),
    "@playwright/mcp": ("--caps=vision,pdf,testing,tracing",),
    "@sentry/mcp-server": ("--access-token=x",),
    "@supabase/mcp-server-supabase": ("--access-token=sbp_" + "0" * 40,),
    "figma-developer-mcp": ("--stdio", "--figma-api-key=x"),
    "@stripe/mcp": ("--tools=all", "--api-key=rk_test_x"),
    "@mobilenext/mobile-mcp": ("--stdio",),
    "xcodebuildmcp": ("mcp",),
    "mcp-server-sqlite": ("--db-path", "/tmp/none.db"),
    "mcp-server-time": ("--local-timezone", "UTC"),
    "basic-memory": ("mcp",),
    "wikipedia-mcp": (),
    "excel-mcp-server": ("stdio",),
    "mongodb-mcp-server": ("--connectionString=mongodb://localhost:1/x",),
}
KEYS = """APIFY_TOKEN AIRTABLE_API_KEY BRAVE_API_KEY CIRCLECI_TOKEN ELEVENLABS_API_KEY ES_API_KEY
EXA_API_KEY FIRECRAWL_API_KEY GITHUB_PERSONAL_ACCESS_TOKEN GITLAB_PERSONAL_ACCESS_TOKEN
GOOGLE_MAPS_API_KEY HEROKU_API_KEY NOTION_TOKEN PERPLEXITY_API_KEY PRIVATE_APP_ACCESS_TOKEN
SLACK_BOT_TOKEN SLACK_TEAM_ID TAVILY_API_KEY TWENTY_FIRST_API_KEY CLICKHOUSE_HOST CLICKHOUSE_USER
CLICKHOUSE_PASSWORD JIRA_API_TOKEN JIRA_USERNAME CONFLUENCE_API_TOKEN CONFLUENCE_USERNAME"""
ENVIRON = {
    **os.environ, **dict.fromkeys(KEYS.split(), "x"), "MAPBOX_ACCESS_TOKEN": "pk.eyJ1IjoieCJ9.x",
    "ES_URL": "http://localhost:1", "JIRA_URL": "https://x.atlassian.net", "DATA_DIR": "/tmp",
    "CONFLUENCE_URL": "https://x.atlassian.net/wiki", "NO_COLOR": "1",
}  # fmt: skip


def strip(schema: Any) -> Any:
    """Return the shape of a schema."""
    if isinstance(schema, list):
        return [strip(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: strip(one) for key, one in value.items()}
        if name in MAPS and isinstance(value, dict)
        else value[:MOST_NAMES]
        if name == "enum"
        else strip(value)
        for name, value in schema.items()
        if name not in PROSE and not name.startswith("x-")
    }


def find_servers(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name, the version and the command of each server that is installed."""
    for home in sorted((folder / "npm").iterdir()):
        listed = json.loads((home / "package.json").read_text()).get("dependencies", {})
        if len(listed) == 1:
            (name,) = listed
            inside = home / "node_modules" / name
            about = json.loads((inside / "package.json").read_text())
            programs = about.get("bin", {})
            program = programs if isinstance(programs, str) else next(iter(programs.values()))
            yield name, about["version"], ["node", str(inside / program), *SERVERS.get(name, ())]
    for home in sorted((folder / "py").iterdir()):
        if (program := home / "bin" / home.name).exists():
            code = f"import importlib.metadata as m; print(m.version({home.name!r}))"
            version = subprocess.check_output([home / "bin/python", "-c", code], text=True)
            yield home.name, version.strip(), [str(program), *SERVERS.get(home.name, ())]


def list_tools(command: list[str]) -> list[dict[str, Any]]:
    """Return what a server says to `tools/list`, over its standard input and output."""
    client = {"name": "list", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    process = subprocess.Popen(
        ["timeout", "60", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=ENVIRON, cwd="/tmp",
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    sent, found = process.stdin, []

    def say(method: str, number: int | None = None, **fields: Any) -> None:
        one = {"jsonrpc": "2.0", "method": method, "params": fields}
        sent.write(json.dumps(one | ({} if number is None else {"id": number})) + "\n")
        sent.flush()

    try:
        say("initialize", 0, **hello)
        for line in process.stdout:
            said = json.loads(line) if line.startswith("{") else {}
            if said.get("id") == 0 and "result" in said:
                say("notifications/initialized")
                say("tools/list", 1)
            elif said.get("id") == 1 and "method" not in said:
                found += said["result"]["tools"]
                if (cursor := said["result"].get("nextCursor")) is None:
                    break
                say("tools/list", 1, cursor=cursor)
    except (BrokenPipeError, KeyError) as error:
        print(command, repr(error), file=sys.stderr)
    process.terminate()
    process.communicate()
    return found


def keep_largest(found: dict[str, Any]) -> dict[str, Any]:
    """Return the largest schemas of a server, each in another shape."""
    shapes = {name: strip(schema) for name, schema in found.items()}
    kinds = {make_key(shape): name for name, shape in reversed(shapes.items())}
    largest = sorted(kinds.values(), key=lambda name: -len(json.dumps(shapes[name])))
    return {name: shapes[name] for name in shapes if name in largest[:MOST_TOOLS]}


def make_key(schema: Any) -> str:
    """Return what two schemas have in common that differ in the names of members only."""
    text = json.dumps(schema, sort_keys=True)
    return re.sub(r'"(enum|required)": \[[^]]*\]', r'"\1"', re.sub(r'"[^"]*": (?=\{)', "", text))


def main(folder: Path) -> None:
    """Write all that is found; print how many tools each server has."""
    python = subprocess.check_output([folder / "py/lib/bin/python", HERE / "libraries.py"])
    node = subprocess.check_output(
        ["node", "--input-type=module"], stdin=(HERE / "libraries.mjs").open(),
        cwd=folder / "npm/zod-set",
    )  # fmt: skip
    found = json.loads(python) | json.loads(node)
    for name, version, command in find_servers(folder):
        tools = list_tools(command)
        print(f"{name} {version}: {len(tools)}")
        shown = {f"{name} {version}: {tool['name']}": tool["inputSchema"] for tool in tools}
        found |= keep_largest(shown)
    shapes = {name: strip(schema) for name, schema in found.items()}
    kept = {make_key(shape): name for name, shape in reversed(shapes.items())}
    lines = (f"{json.dumps(name)}: {json.dumps(shapes[name], separators=(',', ':'))}"
             for name in shapes if name in set(kept.values()))  # fmt: skip
    (HERE / "schemas.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
