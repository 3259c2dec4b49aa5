"""The commands: name, place and one line about each; and the help page made of them.

The help page imports no command, and a command only its own module.
"""

from __future__ import annotations

GROUPS = (
    (
        "Serve and ask",
        (
            ("serve", "serve:serve", "Run the server, and load a model at once if one is named."),
            ("plan", "plan:plan", "Show what serve would do with a model, and why."),
            ("run", "run:run", "Ask a model: once with a prompt, else in a conversation."),
            ("launch", "launch:launch", "Set up a tool to use this server, and start it."),
        ),
    ),
    (
        "Running models",
        (
            ("ps", "ps:ps", "List the models that are loaded, or the requests that run."),
            ("stop", "stop:stop", "Unload a model, or end a request; the server goes on."),
            ("logs", "logs:logs", "Show the log of a model's engine, or of vllama itself."),
            ("events", "events:events", "Show what the server does, as it happens."),
            ("requests", "requests:requests", "List the requests that were captured, or show one."),
            ("usage", "usage:usage", "Show requests, tokens and time by key, model and day."),
            ("replay", "replay:replay", "Send a captured request again, and compare the answers."),
        ),
    ),
    (
        "This machine",
        (
            ("engines", "engines:engines", "List, install or remove the engines."),
            (
                "config",
                "config:configure",
                "Show the settings and where each comes from; edit or describe the config file.",
            ),
            (
                "keys",
                "keys:keys",
                "Manage the keys of the server: list, add, change, rotate, revoke, remove.",
            ),
            (
                "service",
                "service:service",
                "Run the server as a service: install, uninstall, status, logs, show.",
            ),
            (
                "export",
                "export:export",
                "Write configuration, keys, usage and created models to a file.",
            ),
            (
                "import",
                "import_:import_",
                "Take over configuration, keys, usage and created models from a file.",
            ),
            ("doctor", "doctor:doctor", "Look for what keeps models from running here."),
            ("verify", "verify:verify", "Check whether two engines give the same answers."),
            (
                "bisect",
                "bisect:bisect",
                "Find the engine's version, or the settings, with which an answer changed.",
            ),
            (
                "bench",
                "bench:bench",
                "Measure how fast the server is, also compared with another one.",
            ),
        ),
    ),
    (
        "Models on this disk",
        (
            ("pull", "pull:pull", "Download a model, or continue a download that was stopped."),
            ("list", "list:list_models", "List the models on this machine."),
            ("show", "show:show", "Show what a model is."),
            ("create", "create:create", "Create a model: a base with defaults of its own."),
            ("convert", "convert:convert", "Make a GGUF of safetensors, or a smaller GGUF."),
            ("cp", "cp:cp", "Give a model a second name; the files are shared."),
            ("rm", "rm:rm", "Remove models, unloading them first."),
        ),
    ),
)
HIDDEN = (
    ("push", "account:push", "Upload a model: not possible from here."),
    ("signin", "account:signin", "Sign in to ollama.com: not needed here."),
    ("signout", "account:signout", "Sign out of ollama.com."),
    ("completion", "completion:completion", "Print a script that completes commands in a shell."),
)
ALIASES = {"ls": "list", "start": "serve", "login": "signin", "logout": "signout"}

COMMANDS = {name: place for _, rows in (*GROUPS, ("", HIDDEN)) for name, place, _ in rows}

INTRODUCTION = "Serve language models with the vendors' own servers, behind the API of Ollama."
