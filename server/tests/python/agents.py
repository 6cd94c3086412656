"""pydantic-ai, instructor and langchain-openai with tools and structured output, on small models with random weights.

    python agents.py <quire> <folder of golden models> <folder of chat templates>

The models have the templates of Llama 3, Qwen 3 and Mistral, and a context of 8,192 tokens. Their answers are noise, so any
structure in them comes from the server.
"""

import sys
from typing import Annotated, Literal

import instructor
import openai
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from models import FAMILIES, model_with_room
from server import run_tests, server, wait_until_idle, wait_until_ready

SETTINGS = {"temperature": 1.0, "max_tokens": 400}
Word = Annotated[str, Field(max_length=6)]


class Fox(BaseModel):
    """What an animal is."""

    model_config = ConfigDict(extra="forbid")
    name: Word
    tails: int = Field(ge=1, le=9)
    colour: Literal["red", "white"]


class Coat(BaseModel):
    """A schema as strict mode leaves it: this package then sends neither lengths nor bounds."""

    colour: Literal["red", "white"]
    is_thick: bool


def pydantic_model(address, family, kind=OpenAIChatModel):
    return kind(family, provider=OpenAIProvider(base_url=f"{address}/v1", api_key="none"))


def test_pydantic_ai_output(address, family):
    forms = [ToolOutput(Fox), ToolOutput(Coat, strict=True), NativeOutput(Fox, strict=False), NativeOutput(Coat)]
    for kind in [OpenAIChatModel, OpenAIResponsesModel]:
        for seed, form in enumerate(forms):
            settings = {**SETTINGS, "seed": seed} if kind is OpenAIChatModel else SETTINGS
            agent = Agent(pydantic_model(address, family, kind), output_type=form, model_settings=settings)
            assert isinstance(agent.run_sync("A fox, please.").output, (Fox, Coat))


def test_pydantic_ai_tools(address, family):
    """The output is a tool too: the model calls tools and reads their results until it calls the output tool."""
    calls = []
    agent = Agent(pydantic_model(address, family), output_type=ToolOutput(Fox), instructions="Count.", model_settings=SETTINGS)

    @agent.tool_plain
    def find(animal: Word, most: Annotated[int, Field(ge=0, le=99)]) -> int:
        """How many there are."""
        calls.append((animal, most))
        return most

    for seed in range(4):
        result = agent.run_sync("How many foxes?", model_settings={"seed": seed})
        assert isinstance(result.output, Fox)
    assert calls and all(len(animal) <= 6 and 0 <= most <= 99 for animal, most in calls), calls
    # The conversation continues after the calls. Mistral's template requires an assistant message in between.
    if family != "mistral":
        assert isinstance(agent.run_sync("And now?", message_history=result.all_messages()).output, Fox)


def instructor_client(address, mode):
    return instructor.from_openai(openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0), mode=mode)


def test_instructor(address, family):
    ask = {"model": family, "messages": [{"role": "user", "content": "A fox, please."}], "max_retries": 0, **SETTINGS}
    modes = [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]
    for seed, mode in enumerate(modes):
        c = instructor_client(address, mode)
        assert isinstance(c.create(response_model=Fox, seed=seed, **ask), Fox)
        *earlier, last = c.create_partial(response_model=Fox, seed=seed, **ask)
        assert earlier and Fox.model_validate(last.model_dump())


class Search(BaseModel):
    model_config = ConfigDict(extra="forbid")
    place: Word
    times: int = Field(ge=1, le=9)


@tool(args_schema=Search)
def look(place, times):
    """Looks for foxes."""
    return f"{times} in {place}"


def chat(address, family, **options):
    return ChatOpenAI(model=family, base_url=f"{address}/v1", api_key="none", max_retries=0, **{**SETTINGS, **options})


def test_langchain_output(address, family):
    for seed, (method, strict) in enumerate([("function_calling", None), ("function_calling", True), ("json_schema", None), ("json_schema", True)]):
        options = {} if strict is None else {"strict": strict}
        asked = chat(address, family, seed=seed).with_structured_output(Fox, method=method, **options)
        assert isinstance(asked.invoke("A fox, please."), Fox)


def test_langchain_tools(address, family):
    # A random model would call forever if it were allowed to.
    for choice, options in [("any", {"parallel_tool_calls": False}), ("look", {})]:
        model = chat(address, family, seed=7).bind_tools([look], tool_choice=choice, strict=True, **options)
        messages = [HumanMessage("Where are they?")]
        answer = model.invoke(messages)
        assert answer.tool_calls and all(call["name"] == "look" for call in answer.tool_calls)
        for call in answer.tool_calls:
            result = look.invoke(call)
            assert isinstance(result, ToolMessage) and result.content == f"{call['args']['times']} in {call['args']['place']}"
            messages += [result]
        messages.insert(1, answer)
        assert model.invoke(messages).tool_calls
        chunks = list(model.stream(messages[:1]))
        whole = sum(chunks[1:], start=chunks[0])
        assert isinstance(whole, AIMessageChunk)
        assert [(call["name"], call["args"]) for call in whole.tool_calls] == [(call["name"], call["args"]) for call in answer.tool_calls]
    free = chat(address, family, seed=7).bind_tools([look], tool_choice="none").invoke("Where are they?")
    assert not free.tool_calls


if __name__ == "__main__":
    quire, golden, templates = sys.argv[1:]
    for family in FAMILIES:
        with model_with_room(golden, templates, family) as model, server(quire, "--model", model, "--served-model-name", family) as address:
            wait_until_ready(address)
            print(family, flush=True)
            run_tests(globals(), address, family)
            wait_until_idle(address)
