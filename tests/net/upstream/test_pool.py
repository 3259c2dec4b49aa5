"""The pools of connections: every answer is in the pool that is watched."""

import asyncio

import pytest

from tests.loops import in_loop
from vllama.chat.request import Call
from vllama.net.upstream.connection import ConnectionLost
from vllama.net.upstream.pool import Upstreams
from vllama.supervise.spec import Endpoint


@in_loop
async def test_an_answer_is_watched_whatever_else_is_asked_before_its_connection_is_made():
    reached = asyncio.Event()

    async def say_nothing(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        reached.set()
        await reader.read()  # until the client leaves
        writer.close()

    upstreams = Upstreams()
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        endpoint = Endpoint(port=server.sockets[0].getsockname()[1])
        with upstreams.use_pool(endpoint) as upstream:
            # while its prompt is rendered, say, others ask this server and another one
            for other in (Endpoint(port=1), endpoint):
                with upstreams.use_pool(other):
                    pass
            asked = asyncio.create_task(upstream.fetch(Call(path="/x", body=b"{}")))
            try:
                await reached.wait()
                assert len(upstreams.read_progress(endpoint)) == 1
                assert len(upstreams.watch_answers(endpoint.url).list_silent()) == 1
                upstreams.abort_answers(endpoint, "it hangs")
                with pytest.raises(ConnectionLost, match="it hangs"):
                    await asked
            finally:
                asked.cancel()
                await asyncio.wait({asked})
