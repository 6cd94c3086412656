"""Typical conversations with the official openai package: the server's answers are sent back as history.

    python openai_chat.py <quire>
"""

import asyncio
import re
import sys
import threading

import openai

from server import aborts, cancel, cancel_midway, continued, metric, post, refused, run_tests, server, wait_until, wait_until_idle, wait_until_ready

MODEL = "opt-story-3m"
SYSTEM = {"role": "system", "content": "A story for children."}
TURNS = ["Once upon a time there was a fox.", "What did the fox say?", "And then?"]
SHORT = {"temperature": 0, "max_tokens": 12}
# Longer than any test waits.
LONG = {"n": 64, "max_tokens": 480, "extra_body": {"ignore_eos": True}}
# Terms that only Rust programmers know.
RUST = re.compile(r"\b(usize|[iu](8|16|32|64)|f(32|64)|struct|enum|variant|untagged|serde)\b")


def converse(address, say, as_history):
    """Holds a conversation. Each answer must be the model's continuation of all messages before it."""
    messages, texts = [SYSTEM], [SYSTEM["content"]]
    for turn in TURNS:
        messages.append({"role": "user", "content": turn})
        texts.append(turn)
        message = say(messages)
        assert message.role == "assistant" and message.content == continued(address, texts, **SHORT)
        messages.append(as_history(message))
        texts.append(message.content)


def test_history(address, c):
    say = lambda messages: c.chat.completions.create(model=MODEL, messages=messages, **SHORT).choices[0].message
    # The message itself, as a dict with all its nulls, with the received fields only, and without nulls.
    converse(address, say, lambda message: message)
    converse(address, say, lambda message: message.model_dump())
    converse(address, say, lambda message: message.to_dict())
    converse(address, say, lambda message: message.model_dump(exclude_none=True))
    converse(address, say, lambda message: {"role": message.role, "content": message.content})
    parts = lambda message: {"role": message.role, "content": [{"type": "text", "text": message.content}]}
    converse(address, say, parts)


def test_foreign_history(address, c):
    """Messages of other assistants, with the fields that their servers and packages add."""
    extra = {
        "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None, "name": None,
        "reasoning_content": "The fox is hungry.", "provider_specific_fields": {"refusal": None}, "thinking_blocks": [],
    }
    said = "The fox said hello."
    texts = ["A fox.", said, "And then?"]
    ask = lambda history: c.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": texts[0]}, history, {"role": "user", "content": texts[2]}], **SHORT)
    want = continued(address, texts, **SHORT)
    for field, value in extra.items():
        answer = ask({"role": "assistant", "content": said, field: value})
        assert answer.choices[0].message.content == want, field
    assert ask({"role": "assistant", "content": said, **extra}).choices[0].message.content == want
    # An assistant's message may be empty.
    for silent in [{"content": None}, {"content": ""}, {}]:
        assert ask({"role": "assistant", **silent}).choices[0].message.content


def test_streams(address, c):
    messages = [SYSTEM, {"role": "user", "content": TURNS[0]}]
    options = {"model": MODEL, "messages": messages, **SHORT}
    want = continued(address, [message["content"] for message in messages], **SHORT)
    for usage in [None, False, True]:
        streaming = {} if usage is None else {"stream_options": {"include_usage": usage}}
        chunks = list(c.chat.completions.create(**options, stream=True, **streaming))
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == want and chunks[0].choices[0].delta.role == "assistant"
        counts = [chunk.usage for chunk in chunks if chunk.usage]
        if usage:
            assert counts == [chunks[-1].usage] and chunks[-1].choices == []
            assert counts[0].total_tokens == counts[0].prompt_tokens + counts[0].completion_tokens
        else:
            assert not counts and all(chunk.choices for chunk in chunks)
        assert len({chunk.id for chunk in chunks}) == 1
    # The message that the package's own helper assembles is valid history too.
    with c.chat.completions.stream(**{**options, "max_tokens": 200, "stop": ["."]}) as stream:
        parts = [event.delta for event in stream if event.type == "content.delta"]
        whole = stream.get_final_completion().choices[0]
    assert "".join(parts) == whole.message.content and whole.finish_reason == "stop"
    again = c.chat.completions.create(model=MODEL, messages=[*messages, whole.message, messages[1]], **SHORT)
    assert again.choices[0].message.content


def test_fields_without_effect(address, c):
    """Fields that applications and packages always send. Many send null for an unset field."""
    messages = [{"role": "user", "content": TURNS[0]}]
    ask = lambda **fields: c.chat.completions.create(
        **{"model": MODEL, "messages": messages, **SHORT, **fields}).choices[0].message.content
    want = ask()
    harmless = {
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "parallel_tool_calls": False, "store": False,
        "metadata": {"session": "7"}, "service_tier": "auto", "user": "someone", "modalities": ["text"],
        "prompt_cache_key": "key", "safety_identifier": "someone", "reasoning_effort": "low", "verbosity": "low",
    }
    for field, value in harmless.items():
        assert ask(**{field: value}) == want, field
    assert ask(**harmless) == want
    optional = [
        *harmless, "n", "stop", "stream", "stream_options", "top_p", "presence_penalty", "frequency_penalty", "logit_bias",
        "logprobs", "top_logprobs", "seed", "max_completion_tokens", "prediction", "audio", "functions", "function_call",
        "web_search_options", "top_k", "min_p", "best_of", "ignore_eos",
    ]
    for field in optional:
        assert ask(extra_body={field: None}) == want, field
    assert ask(extra_body=dict.fromkeys(optional)) == want
    # Unsupported fields that would change the answer are refused by name.
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for field, value in {"tools": [tool], "response_format": {"type": "xml"}, "modalities": ["text", "audio"]}.items():
        error = refused(openai.BadRequestError, lambda: ask(**{field: value}))
        assert error.param.split(".")[0].split("[")[0] == field, (field, error.body)


def test_extensions(address, c):
    """vLLM's fields in `extra_body`, as its users send them."""
    messages = [{"role": "user", "content": TURNS[0]}]
    ask = lambda **extra: c.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=40, extra_body=extra)
    plain = ask().choices[0]
    tokens = post(address, "/tokenize", {"prompt": plain.message.content, "add_special_tokens": False})["tokens"]
    stopped = ask(stop_token_ids=[tokens[5]]).choices[0]
    assert stopped.finish_reason == "stop" and plain.message.content.startswith(stopped.message.content)
    assert len(stopped.message.content) < len(plain.message.content)
    late = ask(stop_token_ids=[tokens[5]], min_tokens=20)
    assert late.usage.completion_tokens >= 20
    assert ask(stop=["e"], include_stop_str_in_output=True).choices[0].message.content.endswith("e")
    assert ask(skip_special_tokens=True).choices[0].message.content == plain.message.content
    assert ask(chat_template_kwargs={"enable_thinking": False}).choices[0].message.content == plain.message.content
    assert ask(add_generation_prompt=True).choices[0].message.content == plain.message.content
    # An answer that was begun is continued.
    begun = [*messages, {"role": "assistant", "content": "The fox was"}]
    answer = c.chat.completions.create(
        model=MODEL, messages=begun, **SHORT, extra_body={"add_generation_prompt": False, "continue_final_message": True})
    texts = [message["content"] for message in messages]
    texts[-1] += "The fox was"
    assert answer.choices[0].message.content == continued(address, texts, **SHORT)


def test_errors(address, c):
    ask = lambda **fields: (lambda: c.chat.completions.create(
        **{"model": MODEL, "messages": [{"role": "user", "content": "A fox"}], **fields}))
    wrong = {
        "temperature": "hot", "top_p": 7, "n": 0, "max_tokens": -1, "max_completion_tokens": 1.5, "seed": "x", "stop": [1],
        "stream": "yes", "logit_bias": [1], "top_logprobs": 3, "logprobs": 1, "messages": [], "frequency_penalty": {},
        "stream_options": [], "no_such_field": 1, "user": 7,
    }
    for field, value in wrong.items():
        error = refused(openai.BadRequestError, ask(extra_body={field: value}))
        assert (error.param, error.type) == (field, "invalid_request_error"), (field, error.body)
        assert not RUST.search(error.message), error.message
    for message in ["hello", {}, {"role": 1, "content": "x"}, {"role": "user"}, {"role": "user", "content": 7},
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]:
        error = refused(openai.BadRequestError, ask(messages=[message]))
        assert error.param and error.param.startswith("messages"), (message, error.body)
        assert not RUST.search(error.message), error.message
    long = refused(openai.BadRequestError, ask(messages=[{"role": "user", "content": "fox " * 600}]))
    assert (long.code, long.param) == ("context_length_exceeded", "messages"), long.body
    assert "maximum context length is 512 tokens" in long.message
    unknown = refused(openai.NotFoundError, ask(model="gpt-4"))
    assert (unknown.code, unknown.param) == ("model_not_found", "model")
    assert refused(openai.NotFoundError, lambda: c.moderations.create(input="x")).status_code == 404
    # A whole number is an integer, however it is written.
    assert ask(extra_body={"max_tokens": 4.0})().usage.completion_tokens == 4


def test_raw_responses(address, c):
    raw = c.chat.completions.with_raw_response.create(model=MODEL, messages=[{"role": "user", "content": "A fox"}], **SHORT)
    assert raw.headers["x-request-id"] and raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content == raw.parse().to_dict()["choices"][0]["message"]["content"]


def test_localhost(address, c):
    """By the server's name, and with the trailing slash that many settings have."""
    named = address.replace("127.0.0.1", "localhost")
    for base in [f"{named}/v1", f"{named}/v1/"]:
        with openai.OpenAI(base_url=base, api_key="none") as other:
            assert [model.id for model in other.models.list()] == [MODEL]


def test_abandoned_streams(address, c):
    options = {"model": MODEL, "messages": [{"role": "user", "content": "A fox"}], "stream": True, **LONG}
    with aborts(address):
        with c.chat.completions.create(**options) as stream:
            next(iter(stream))
    with aborts(address):
        for _ in (stream := c.chat.completions.create(**options)):
            break
        stream.close()
    with aborts(address):
        hasty = c.with_options(timeout=0.3, max_retries=0)
        refused(openai.APITimeoutError, lambda: hasty.chat.completions.create(**{**options, "stream": False}))


def test_async(address, c):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as a:
            create = a.chat.completions.create
            chat = lambda text: create(model=MODEL, messages=[{"role": "user", "content": text}], **SHORT)
            answers = await asyncio.gather(*map(chat, TURNS))
            for turn, answer in zip(TURNS, answers, strict=True):
                assert answer.choices[0].message.content == continued(address, [turn], **SHORT)
            messages = [{"role": "user", "content": TURNS[0]}, answers[0].choices[0].message, {"role": "user", "content": TURNS[1]}]
            stream = await create(model=MODEL, messages=messages, **SHORT, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == continued(address, [TURNS[0], messages[1].content, TURNS[1]], **SHORT)
            # Cancelled tasks: one that waits for its answer, and one in the middle of its stream.
            running = lambda: metric(address, "vllm:num_requests_running") > 0
            with aborts(address):
                task = asyncio.create_task(create(model=MODEL, messages=messages, **LONG))
                await asyncio.to_thread(wait_until, running)
                await cancel(task)
            with aborts(address):

                async def read(begun):
                    async with await create(model=MODEL, messages=messages, **LONG, stream=True) as stream:
                        async for _ in stream:
                            begun.set()
                            await asyncio.Event().wait()

                await cancel_midway(read)

    asyncio.run(all_of_them())


def retries(quire):
    """A client that is told to retry later does so by itself and gets its answer."""
    messages = [{"role": "user", "content": TURNS[0]}]
    with server(quire, "--max-requests", "1") as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none") as c:
        wait_until_ready(address)
        want = continued(address, TURNS[:1], **SHORT)
        with aborts(address):
            with c.chat.completions.create(model=MODEL, messages=messages, stream=True, **LONG) as stream:
                next(iter(stream))
                impatient = c.with_options(max_retries=0)
                ask = lambda c: c.chat.completions.create(model=MODEL, messages=messages, **SHORT).choices[0].message.content
                error = refused(openai.RateLimitError, lambda: ask(impatient))
                assert error.code == "rate_limit_exceeded" and error.response.headers["retry-after"] == "1"
                answers = []
                patient = threading.Thread(target=lambda: answers.append(ask(c.with_options(max_retries=20))))
                patient.start()
                wait_until(lambda: metric(address, "quire:requests_refused_total") >= 2)
            patient.join()
        assert answers == [want]


def main(quire):
    with server(quire) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as c:
        wait_until_ready(address)
        run_tests(globals(), address, c)
        wait_until_idle(address)
    retries(quire)
    print("openai_chat.py: retries")


if __name__ == "__main__":
    main(*sys.argv[1:])
