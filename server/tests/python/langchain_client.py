"""langchain-openai against `quire serve`: chat models, completions, chains of messages.

    python langchain_client.py <quire>
"""

import asyncio
import sys

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

from server import aborts, cancel_midway, continued, refused, run_tests, server, wait_until_idle, wait_until_ready

SYSTEM = "A story for children."
TURNS = ["Once upon a time there was a fox.", "What did the fox say?", "And then?"]
SHORT = {"temperature": 0, "max_tokens": 12}


def model(address, kind=ChatOpenAI, **options):
    settings = {"model": "opt-story-3m", "base_url": f"{address}/v1", "api_key": "none", "max_retries": 0}
    return kind(**{**settings, **SHORT, **options})


def endless(address, **options):
    return model(address, **{"n": 64, "max_tokens": 480, "extra_body": {"ignore_eos": True}, **options})


def test_history(address):
    chat = model(address)
    for as_history in [lambda message: message, lambda message: ("ai", message.content)]:
        messages, texts = [SystemMessage(SYSTEM)], [SYSTEM]
        for turn in TURNS:
            messages.append(HumanMessage(turn))
            texts.append(turn)
            message = chat.invoke(messages)
            assert isinstance(message, AIMessage) and message.content == continued(address, texts, **SHORT)
            assert message.usage_metadata["output_tokens"] == 12
            assert message.response_metadata["finish_reason"] == "length"
            messages.append(as_history(message))
            texts.append(message.content)
    # Messages with several parts, and users with names.
    parts = [HumanMessage([{"type": "text", "text": "A fox"}, {"type": "text", "text": "."}], name="Ann"), AIMessage("Yes.")]
    assert chat.invoke([*parts, HumanMessage("And?")]).content


def test_streams(address):
    for chat in [model(address), model(address, stream_usage=True), model(address, stream_usage=False)]:
        chunks = list(chat.stream(TURNS[0]))
        whole = sum(chunks[1:], start=chunks[0])
        assert isinstance(whole, AIMessageChunk) and whole.content == continued(address, TURNS[:1], **SHORT)
        # The sum of a stream's chunks is a message like any other.
        answer = chat.invoke([HumanMessage(TURNS[0]), whole, HumanMessage(TURNS[1])])
        assert answer.content == continued(address, [TURNS[0], whole.content, TURNS[1]], **SHORT)
    assert sum(model(address, stream_usage=True).stream(TURNS[0]), start=AIMessageChunk("")).usage_metadata["output_tokens"] == 12


def test_chains(address):
    prompt = ChatPromptTemplate.from_messages([("system", SYSTEM), ("placeholder", "{history}"), ("human", "{turn}")])
    chain = prompt | model(address) | StrOutputParser()
    history = [("human", TURNS[0]), ("ai", "Hello.")]
    want = continued(address, [SYSTEM, TURNS[0], "Hello.", TURNS[1]], **SHORT)
    assert chain.invoke({"turn": TURNS[1], "history": history}) == want
    assert "".join(chain.stream({"turn": TURNS[1], "history": history})) == want


def test_batches(address):
    want = [continued(address, [turn], **SHORT) for turn in TURNS]
    assert [message.content for message in model(address).batch(TURNS)] == want
    assert [answer.text for [answer] in model(address, OpenAI).generate(TURNS).generations] == want
    several = model(address, n=3, seed=1, temperature=1).generate([[HumanMessage(turn)] for turn in TURNS]).generations
    assert [len(answers) for answers in several] == [3, 3, 3]


def test_completions(address):
    want = continued(address, TURNS[:1], **SHORT)
    text = model(address, OpenAI)
    assert text.invoke(TURNS[0]) == want and "".join(text.stream(TURNS[0])) == want
    stopped = text.invoke(TURNS[0], stop=["e"])
    assert want.startswith(stopped) and "e" not in stopped


def test_fields(address):
    want = continued(address, TURNS[:1], **SHORT)
    options = {"top_p": 1.0, "presence_penalty": 0, "frequency_penalty": 0, "logprobs": True, "top_logprobs": 2, "n": 1, "seed": 1}
    answer = model(address, **options).invoke(TURNS[0])
    assert answer.content == want and len(answer.response_metadata["logprobs"]["content"]) == 12
    harmless = {"service_tier": "auto", "store": False, "metadata": {"session": "7"}, "verbosity": "low"}
    # Some fields make the client use the Responses API unless it is told not to.
    chat = model(address, use_responses_api=False, **harmless)
    assert chat.invoke(TURNS[0], user="someone", tools=[], tool_choice="none").content == want


def test_errors(address):
    error = refused(openai.BadRequestError, lambda: model(address, max_tokens=-1).invoke("A fox"))
    # The client sends `max_tokens` under its newer name.
    assert error.param in ("max_completion_tokens", "max_tokens"), error.body
    refused(openai.NotFoundError, lambda: model(address, model="gpt-4").invoke("A fox"))
    refused(ContextOverflowError, lambda: model(address).invoke("fox " * 600))


def test_abandoned_streams(address):
    with aborts(address):
        stream = endless(address).stream("A fox")
        next(stream)
        stream.close()
    with aborts(address):
        refused(openai.APITimeoutError, lambda: endless(address, timeout=0.3).invoke("A fox"))


def test_async(address):
    async def all_of_them():
        chat = model(address)
        answers = await chat.abatch(TURNS)
        assert [answer.content for answer in answers] == [continued(address, [turn], **SHORT) for turn in TURNS]
        history = [HumanMessage(TURNS[0]), answers[0], HumanMessage(TURNS[1])]
        text = "".join([chunk.content async for chunk in chat.astream(history)])
        assert text == continued(address, [TURNS[0], answers[0].content, TURNS[1]], **SHORT)

        # A task that is cancelled after it has read a part of its stream.
        async def read(begun):
            async for _ in endless(address).astream(history):
                begun.set()
                await asyncio.Event().wait()

        await cancel_midway(read)

    with aborts(address):
        asyncio.run(all_of_them())


def main(quire):
    with server(quire) as address:
        wait_until_ready(address)
        run_tests(globals(), address)
        wait_until_idle(address)


if __name__ == "__main__":
    main(*sys.argv[1:])
