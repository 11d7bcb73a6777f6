"""Chat completions with the echo stage, judged by the official `openai` SDK (3.57)."""

import asyncio

import aiohttp
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

CHAT = {"model": "parrot", "stages": {"reply": {"kind": "echo", "final": True}}}
ENDLESS = "word " * 100_000


def chat_of(max_requests=64, max_running=16, **options):
    stage = {"kind": "echo", "final": True, "max_running": max_running, "options": options}
    return {"model": "parrot", "stages": {"reply": stage}, "max_requests": max_requests}


def client_of(server):
    return AsyncOpenAI(api_key="unused-key", base_url=server.address + "/v1", max_retries=0)


def user(text):
    return [{"role": "system", "content": "Parrot."}, {"role": "user", "content": text}]


def create(client, text="hello you", **options):
    return client.chat.completions.create(model="parrot", messages=user(text), **options)


async def idle(server):
    """Waits until no request is left anywhere; hangs, and so fails, if one is."""
    async with asyncio.timeout(20):
        while True:
            await server.runtime.chat.idle()
            stages = (await server.runtime.engine.stats()).stages
            if not any(s.waiting or s.running or s.unread for s in stages):
                break


async def test_an_answer(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        answer = await create(client)
        assert answer.choices[0].message.content == "hello you"
        assert answer.choices[0].finish_reason == "stop"
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)
        ChatCompletion.model_validate(answer.model_dump(), strict=True)
        short = await create(client, "one two three", max_completion_tokens=2)
        assert short.choices[0].message.content == "one two"
        assert short.choices[0].finish_reason == "length"
        assert "stage_metrics" not in short.model_extra
        measured = await create(client, extra_body={"return_stage_metrics": True})
        (times,) = measured.model_extra["stage_metrics"]
        assert (times["stage"], times["outputs"]) == ("reply", 2)
        assert times["first_output_s"] <= times["total_s"]
        single = await create(client, "one", extra_body={"return_stage_metrics": True})
        assert "inter_output_mean_s" not in single.model_extra["stage_metrics"][0]
        await idle(server)


async def test_the_list_of_models_names_it(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        assert [model.id async for model in client.models.list()] == ["echo", "parrot"]


async def test_a_stream(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        stream = await create(client, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
        assert text == "hello you"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 5)
        assert len({chunk.id for chunk in chunks}) == 1
        async with client.chat.completions.stream(model="parrot", messages=user("a b")) as helper:
            final = await helper.get_final_completion()
        assert final.choices[0].message.content == "a b"
        await idle(server)


async def test_several_choices(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        whole = await create(client, n=3)
        assert [(c.index, c.message.content) for c in whole.choices] == [
            (index, "hello you") for index in range(3)
        ]
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 6)
        stream = await create(client, n=3, stream=True, stream_options={"include_usage": True})
        texts, ends = ["", "", ""], []
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends += [choice.index] if choice.finish_reason else []
        assert texts == ["hello you"] * 3
        assert sorted(ends) == [0, 1, 2]
        assert chunk.usage == whole.usage
        left = await create(client, ENDLESS, n=3, stream=True)
        await anext(left.__aiter__())
        await left.close()
        await idle(server)


async def test_content_in_parts(start_server):
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        answer = await client.chat.completions.create(
            model="parrot", messages=[{"role": "user", "content": parts}]
        )
        assert answer.choices[0].message.content == "a b"


async def test_a_batch(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        answer = await client.post(
            "/chat/completions/batch",
            body={"model": "parrot", "messages": [user("one"), user("two two"), user("three")]},
            cast_to=ChatCompletion,
        )
        assert [c.index for c in answer.choices] == [0, 1, 2]
        assert [c.message.content for c in answer.choices] == ["one", "two two", "three"]
        assert answer.usage.completion_tokens == 4
        await idle(server)


async def test_a_batch_is_taken_in_whole_or_not(start_server):
    async with start_server(chat=chat_of(2)) as server, client_of(server) as client:
        with pytest.raises(openai.RateLimitError):
            await client.post(
                "/chat/completions/batch",
                body={"model": "parrot", "messages": [user("a")] * 3},
                cast_to=ChatCompletion,
            )
        await idle(server)
        assert (await create(client)).choices[0].message.content == "hello you"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"stop": list("abcde")}, "stop"),
        ({"stop": ""}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "parrot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": "hello"}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
    ],
)
async def test_a_wrong_field_is_named(start_server, options, param):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                **{"model": "parrot", "messages": user("x")} | options
            )
        assert (caught.value.code, caught.value.param) == ("invalid_value", param)
        assert server.runtime.chat.admitted == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": True}, "stream"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools"),
        ({"n": 2}, "n"),
    ],
)
async def test_what_a_batch_cannot_do(start_server, body, param):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post(
                "/chat/completions/batch",
                body={"model": "parrot", "messages": [user("a")]} | body,
                cast_to=ChatCompletion,
            )
        assert caught.value.param == param


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_model_refuses_is_a_400_streamed_or_not(start_server, stream):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await create(client, logprobs=True, n=2, stream=stream)
        assert (caught.value.code, caught.value.param) == ("invalid_value", "logprobs")
        assert server.runtime.chat.errors == {"invalid_value": 1}
        await idle(server)


async def test_another_model_is_not_here(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="gpt", messages=user("x"))
        assert caught.value.code == "model_not_found"


async def test_without_chat_it_says_what_to_install(start_server):
    async with start_server() as server, client_of(server) as client:
        for stream in (False, True):
            with pytest.raises(openai.APIStatusError, match=r"duplex-media-server\[vllm\]") as e:
                await create(client, stream=stream)
            assert e.value.status_code == 501


async def test_full_is_429(start_server):
    async with start_server(chat=chat_of(1)) as server, client_of(server) as client:
        stream = await create(client, ENDLESS, stream=True)
        with pytest.raises(openai.RateLimitError) as caught:
            await create(client)
        assert caught.value.response.headers["Retry-After"]
        await stream.close()
        await idle(server)
        await create(client)


async def test_a_caller_that_leaves_a_stream_is_aborted(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        for taken in (0, 1, 100):
            stream = await create(client, ENDLESS, stream=True)
            for _ in range(taken):
                await anext(stream.__aiter__())
            await stream.close()
            await idle(server)


async def test_a_caller_that_leaves_before_any_answer_is_aborted(start_server):
    """Nothing is written to it, so nothing but its hanging up tells."""
    chat = chat_of(max_running=1, step_ms=5)
    async with start_server(chat=chat) as server:
        for stream in (False, True):
            async with aiohttp.ClientSession() as http:
                body = {"model": "parrot", "messages": user(ENDLESS), "stream": stream}
                url = server.address + "/v1/chat/completions"
                calls = [asyncio.create_task(http.post(url, json=body)) for _ in range(3)]
                async with asyncio.timeout(20):
                    while server.runtime.chat.active < 3:
                        await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
            await idle(server)


async def test_a_connection_serves_the_next_request_too(start_server):
    async with start_server(chat=CHAT) as server, aiohttp.ClientSession() as http:
        for stream in (False, True) * 3:
            body = {"model": "parrot", "messages": user("x"), "stream": stream}
            url = server.address + "/v1/chat/completions"
            async with http.post(url, json=body) as response:
                assert "x" in await response.text()
        await idle(server)


async def test_shutdown_ends_a_stream_with_an_error(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        stream = await create(client, ENDLESS, stream=True)
        await anext(stream.__aiter__())
        stopping = asyncio.create_task(server.runtime.stop())
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
        assert caught.value.code == "engine_unavailable"
        await stopping
        with pytest.raises(openai.InternalServerError) as refused:
            await create(client)
        assert refused.value.status_code == 503


async def test_draining_refuses_what_is_new_and_waits_for_the_rest(start_server):
    async with start_server(chat=chat_of(step_ms=1)) as server, client_of(server) as client:
        stream = await create(client, "w " * 50, stream=True)
        draining = asyncio.create_task(server.runtime.drain(20))
        await asyncio.sleep(0)
        with pytest.raises(openai.InternalServerError):
            await create(client)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert await draining


async def test_it_shows_in_the_metrics(start_server):
    async with start_server(chat=CHAT) as server, client_of(server) as client:
        await create(client)
        with pytest.raises(openai.BadRequestError):
            await create(client, temperature=9)
        async with aiohttp.ClientSession() as http:
            text = await (await http.get(server.address + "/metrics")).text()
    assert "duplex_chat_requests_total 1.0" in text
    assert 'duplex_stage_jobs{stage="reply",state="running"} 0.0' in text


async def test_keys_are_asked_for(start_server):
    keys = ["correct-horse"]
    async with start_server(chat=CHAT, api_keys=keys) as server, client_of(server) as client:
        with pytest.raises(openai.AuthenticationError):
            await create(client)


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["whole", "stream", "choices", "batch"]),
        st.integers(0, 300),
        st.integers(0, 40),
    ),
    max_size=8,
)
"""How, how many words, and after how many reads or turns of the loop the caller hangs up."""


async def call_and_leave(server, how, words, patience):
    body = {"model": "parrot", "messages": user("w " * words), "stream": how == "stream"}
    path = "/v1/chat/completions"
    if how == "choices":
        body |= {"n": 3, "stream": True}
    if how == "batch":
        path += "/batch"
        body["messages"] = [body["messages"]] * 2
    async with aiohttp.ClientSession() as http:
        asking = asyncio.create_task(http.post(server.address + path, json=body))
        for _ in range(patience):
            await asyncio.sleep(0)
        if patience % 3 == 0:
            asking.cancel()
        (response,) = await asyncio.gather(asking, return_exceptions=True)
        if isinstance(response, aiohttp.ClientResponse):
            assert response.status in (200, 429, 503)
            for _ in range(patience):
                if not await response.content.read(100):
                    break
            response.close()


async def test_whatever_callers_do_nothing_is_left(start_server):
    @settings(max_examples=50)
    @given(CALLS, st.booleans())
    def check(calls, shutdown):
        with asyncio.Runner() as runner:
            runner.run(play(calls, shutdown=shutdown))

    async def play(calls, *, shutdown):
        before = asyncio.all_tasks()
        async with start_server(chat=chat_of(max_requests=5, max_running=2)) as server:
            callers = [asyncio.create_task(call_and_leave(server, *call)) for call in calls]
            if shutdown:
                await asyncio.sleep(0)
                await server.runtime.stop()
            await asyncio.gather(*callers)
            if not shutdown:
                await idle(server)
            assert server.runtime.chat.active == 0
        assert asyncio.all_tasks() == before

    await asyncio.to_thread(check)
