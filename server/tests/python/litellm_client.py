"""litellm against `quire serve`, with its providers for OpenAI-compatible servers and for vLLM.

    python litellm_client.py <quire>
"""

import asyncio
import os
import sys

# Uses the table of prices in the package instead of downloading it.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

from server import aborts, cancel_midway, continued, refused, run_tests, server, wait_until_idle, wait_until_ready

PROVIDERS = ["openai", "hosted_vllm"]
TURNS = ["Once upon a time there was a fox.", "What did the fox say?", "And then?"]
SHORT = {"temperature": 0, "max_tokens": 12}
LONG = {"n": 64, "max_tokens": 480, "extra_body": {"ignore_eos": True}}


def at(address, provider):
    return {"model": f"{provider}/opt-story-3m", "api_base": f"{address}/v1", "api_key": "none", "num_retries": 0}


def user(text):
    return {"role": "user", "content": text}


def test_history(address, provider):
    for as_history in [lambda message: message, lambda message: message.model_dump(), lambda message: message.json()]:
        messages, texts = [], []
        for turn in TURNS:
            messages.append(user(turn))
            texts.append(turn)
            answer = litellm.completion(**at(address, provider), messages=messages, **SHORT)
            message = answer.choices[0].message
            assert message.content == continued(address, texts, **SHORT)
            assert answer.usage.completion_tokens == 12 and answer.choices[0].finish_reason == "length"
            messages.append(as_history(message))
            texts.append(message.content)


def test_streams(address, provider):
    messages = [user(TURNS[0])]
    want = continued(address, TURNS[:1], **SHORT)
    for options in [{}, {"stream_options": {"include_usage": True}}]:
        chunks = list(litellm.completion(**at(address, provider), messages=messages, stream=True, **options, **SHORT))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == want
        # The answer that litellm assembles is valid history.
        whole = litellm.stream_chunk_builder(chunks, messages=messages)
        assert whole.choices[0].message.content == want
        if options:
            assert whole.usage.completion_tokens == 12
        history = [*messages, whole.choices[0].message, user(TURNS[1])]
        answer = litellm.completion(**at(address, provider), messages=history, **SHORT)
        assert answer.choices[0].message.content == continued(address, [TURNS[0], want, TURNS[1]], **SHORT)


def test_fields(address, provider):
    want = continued(address, TURNS[:1], **SHORT)
    # Fields without effect that litellm passes on.
    harmless = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "parallel_tool_calls": True,
                "user": "someone", "metadata": {"session": "7"}, "store": False, "reasoning_effort": "low"}
    for field, value in harmless.items():
        options = {"allowed_openai_params": [field], field: value}
        answer = litellm.completion(**at(address, provider), messages=[user(TURNS[0])], **SHORT, **options)
        assert answer.choices[0].message.content == want, field
    # Fields that litellm does not know are passed on unchanged.
    answer = litellm.completion(**at(address, provider), messages=[user(TURNS[0])], **SHORT, top_k=1, min_p=0.5, ignore_eos=True)
    assert answer.choices[0].message.content == want


def test_batches(address, provider):
    answers = litellm.batch_completion(**at(address, provider), messages=[[user(turn)] for turn in TURNS], **SHORT)
    for turn, answer in zip(TURNS, answers, strict=True):
        assert answer.choices[0].message.content == continued(address, [turn], **SHORT)


def test_text_completion(address, provider):
    options = {**at(address, provider), "model": "text-completion-openai/opt-story-3m"}
    answer = litellm.text_completion(**options, prompt=TURNS[0], **SHORT)
    assert answer.choices[0].text == continued(address, TURNS[:1], **SHORT)
    several = litellm.text_completion(**options, prompt=TURNS, **SHORT)
    assert [choice.text for choice in several.choices] == [continued(address, [turn], **SHORT) for turn in TURNS]
    chunks = litellm.text_completion(**options, prompt=TURNS[0], stream=True, **SHORT)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == answer.choices[0].text


def test_errors(address, provider):
    ask = lambda **fields: (lambda: litellm.completion(**{**at(address, provider), "messages": [user("A fox")], **fields}))
    assert "max_tokens" in refused(litellm.BadRequestError, ask(max_tokens=-1)).message
    assert "temperature" in refused(litellm.BadRequestError, ask(temperature=-1)).message
    refused(litellm.NotFoundError, ask(model=f"{provider}/gpt-4"))
    # litellm can handle this error, for example with a model with a larger context, so it must recognise it.
    refused(litellm.ContextWindowExceededError, ask(messages=[user("fox " * 600)]))


def test_abandoned_streams(address, provider):
    options = {**at(address, provider), "messages": [user("A fox")], **LONG}
    with aborts(address):
        # Only the streams of this provider can be closed without asyncio.
        stream = litellm.completion(**{**options, **at(address, "openai")}, stream=True)
        for _ in stream:
            break
        stream.completion_stream.close()
    with aborts(address):
        refused(litellm.Timeout, lambda: litellm.completion(**options, timeout=0.3))


def test_async(address, provider):
    async def all_of_them():
        options = at(address, provider)
        answers = await asyncio.gather(*(litellm.acompletion(**options, messages=[user(turn)], **SHORT) for turn in TURNS))
        for turn, answer in zip(TURNS, answers, strict=True):
            assert answer.choices[0].message.content == continued(address, [turn], **SHORT)
        history = [user(TURNS[0]), answers[0].choices[0].message, user(TURNS[1])]
        stream = await litellm.acompletion(**options, messages=history, stream=True, **SHORT)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == continued(address, [TURNS[0], history[1].content, TURNS[1]], **SHORT)

        # A task that is cancelled after it has read a part of its stream.
        async def read(begun):
            stream = await litellm.acompletion(**options, messages=history, stream=True, **LONG)
            try:
                async for _ in stream:
                    begun.set()
                    await asyncio.Event().wait()
            finally:
                await stream.aclose()

        await cancel_midway(read)

    with aborts(address):
        asyncio.run(all_of_them())


def main(quire):
    litellm.suppress_debug_info = True
    with server(quire) as address:
        wait_until_ready(address)
        for provider in PROVIDERS:
            run_tests(globals(), address, provider)
        wait_until_idle(address)


if __name__ == "__main__":
    main(*sys.argv[1:])
