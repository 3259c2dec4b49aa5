# SPDX-License-Identifier: MIT
"""Two yardsticks for compare.py (fastapi, httpx and uvicorn[standard]; see peers.py).

naive: the proxy that most people would write: FastAPI, httpx's aiter_lines, and stdlib json;
    /api/chat over ENGINE
front: the shape of vLLM's own HTTP front, FastAPI + one pydantic dump per token,
    /v1/chat/completions

    ENGINE=http://127.0.0.1:9000 uvicorn baselines:naive --app-dir bench --port 9101
    uvicorn baselines:front --app-dir bench --port 9102
"""

import asyncio
import datetime
import json
import os
import re
import time
from typing import Literal

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

ENGINE = os.environ.get("ENGINE", "http://127.0.0.1:9000")

# ---------------------------------------------------------------- naive proxy
naive = FastAPI()
client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))


class Message(BaseModel):
    role: str
    content: str


class Chat(BaseModel):
    model: str
    messages: list[Message]
    stream: bool = True
    options: dict | None = None


@naive.get("/api/version")
async def version():
    return {"version": "0.0.0"}


@naive.post("/api/chat")
async def chat(r: Chat):
    body = {"model": r.model, "messages": [m.model_dump() for m in r.messages], "stream": True}
    if r.options and "num_predict" in r.options:
        body["max_tokens"] = r.options["num_predict"]

    def line(content, **more):
        return (
            json.dumps(
                {
                    "model": r.model,
                    "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
                    "message": {"role": "assistant", "content": content},
                    "done": False,
                    **more,
                }
            )
            + "\n"
        )

    async def lines():
        async with client.stream("POST", ENGINE + "/v1/chat/completions", json=body) as resp:
            async for text in resp.aiter_lines():
                if not text.startswith("data: ") or text == "data: [DONE]":
                    continue
                event = json.loads(text[6:])
                if event["choices"] and event["choices"][0]["delta"].get("content"):
                    yield line(event["choices"][0]["delta"]["content"])
        yield line("", done=True, done_reason="stop")

    return StreamingResponse(lines(), media_type="application/x-ndjson")


# --------------------------------------------------------------- engine front
front = FastAPI()
groups: dict = {}


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class Delta(Loose):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list = []


class Choice(Loose):
    index: int
    delta: Delta
    logprobs: dict | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class Chunk(Loose):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[Choice]


async def ticker(rate):
    streams, due = groups[rate], time.monotonic()
    while streams:
        for event in list(streams):
            event.set()
        due += 1 / rate
        await asyncio.sleep(max(0, due - time.monotonic()))
    del groups[rate]


@front.get("/api/version")
async def front_version():
    return {}


@front.post("/v1/chat/completions")
async def completions(request: Request):
    body = await request.json()
    rate = int((re.search(r"@rate=(\d+)", body["messages"][-1]["content"]) or [0, "50"])[1])

    async def events():
        step = asyncio.Event()
        if rate:
            if rate not in groups:
                groups[rate] = {step}
                groups[rate, "task"] = asyncio.create_task(ticker(rate))
            else:
                groups[rate].add(step)
        try:
            for _ in range(body["max_tokens"]):
                if rate:
                    await step.wait()
                    step.clear()
                else:
                    await asyncio.sleep(0)
                text = f" ~{time.monotonic_ns() // 1000:013d}"
                chunk = Chunk(
                    id="chatcmpl-0123456789abcdef",
                    created=1700000000,
                    model=body["model"],
                    choices=[
                        Choice(
                            index=0,
                            delta=Delta(content=text),
                            logprobs=None,
                            finish_reason=None,
                            token_ids=None,
                        )
                    ],
                )
                yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            if rate in groups:
                groups[rate].discard(step)

    return StreamingResponse(events(), media_type="text/event-stream")
