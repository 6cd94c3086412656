"""Structured output and tools with the official openai package. The package jsonschema checks the documents.

    python structured.py <quire>
"""

import json
import re
import sys
import tempfile

import jsonschema
import openai
from pydantic import BaseModel, Field

from server import run_tests, server, wait_until_idle, wait_until_ready

MODEL = "opt-story-3m"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
# A template with every feature of tool templates. It is short, because the model has few positions.
TEMPLATE = """{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>{% endif %}
{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}
{% endfor %}"""
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 1, None]}}, "required": ["a", "b"], "additionalProperties": False},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "string", "pattern": "^[a-c]+-[0-9]{2}$", "maxLength": 12},
    {"type": "string", "format": "date"},
    {"type": "number", "minimum": -5, "maximum": 5, "multipleOf": 0.5},
    {"anyOf": [{"const": "yes"}, {"type": "object", "properties": {"no": {"type": "string", "maxLength": 5}}, "required": ["no"], "additionalProperties": False}]},
    {"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v", "next"], "additionalProperties": False}}, "$ref": "#/$defs/n"},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
]


def test_documents_are_valid(address, c):
    stopped = cut = 0
    for schema in SCHEMAS:
        for temperature, seed in [(0, 0), (0.7, 1), (1, 2), (1.5, 3)]:
            form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
            answer = c.chat.completions.create(
                model=MODEL, messages=MESSAGES, response_format=form, temperature=temperature, seed=seed, n=2, max_tokens=400)
            for choice in answer.choices:
                if choice.finish_reason == "length":
                    cut += 1
                    continue
                jsonschema.validate(json.loads(choice.message.content), schema)
                stopped += 1
    print(f"{stopped} documents are valid, {cut} were cut by length")
    assert stopped > 3 * cut


def test_texts_match(address, c):
    for regex in [r"(a|bc)+[0-9]{2,3}", r"[A-Z][a-z]{2,6}( [A-Z][a-z]{2,6}){1,2}\.", r"\d{4}-\w{2}"]:
        for seed in range(4):
            choice = c.completions.create(
                model=MODEL, prompt="Once", seed=seed, max_tokens=100, extra_body={"structured_outputs": {"regex": regex}}).choices[0]
            if choice.finish_reason == "stop":
                assert re.fullmatch(regex, choice.text, re.ASCII), choice.text


class Fox(BaseModel):
    name: str = Field(max_length=8, pattern="^[a-z]+$")
    tails: int = Field(ge=1, le=9)
    friends: list[str] = Field(max_length=0)


def test_parse(address, c):
    answer = c.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Fox, max_tokens=400, seed=3)
    assert isinstance(answer.choices[0].message.parsed, Fox)
    with c.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=Fox, max_tokens=400, seed=3) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Fox)


TOOLS = [
    {"type": "function", "function": {"name": "count", "parameters": SCHEMAS[0], "strict": True}},
    {"type": "function", "function": {"name": "rest"}},
]


def test_tools(address, c):
    options = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400}
    for seed in range(4):
        choice = c.chat.completions.create(**options, seed=seed).choices[0]
        [call] = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[0]) if call.function.name == "count" else None
        # The message is sent back unchanged, with the result.
        history = [*MESSAGES, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
        assert c.chat.completions.create(model=MODEL, messages=history, tools=TOOLS, max_tokens=3).choices[0].message
        with c.chat.completions.stream(**options, seed=seed) as stream:
            names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
            streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert names == [call.function.name] and streamed.function.arguments == call.function.arguments
    named = {**options, "tool_choice": {"type": "function", "function": {"name": "rest"}}}
    assert c.chat.completions.create(**named).choices[0].message.tool_calls[0].function.name == "rest"
    parsed = c.chat.completions.parse(**{**options, "tools": [openai.pydantic_function_tool(Fox)]})
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, Fox)


def test_refusals(address, c):
    for form in [{"type": "nothing"}, {"$ref": "#/nowhere"}]:
        try:
            c.completions.create(model=MODEL, prompt="x", extra_body={"guided_json": form})
        except openai.BadRequestError as error:
            assert error.param == "guided_json", error
        else:
            raise AssertionError(f"{form} is taken")


def main(quire):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        with server(quire, "--chat-template", template.name) as address:
            wait_until_ready(address)
            run_tests(globals(), address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0))
            wait_until_idle(address)


if __name__ == "__main__":
    main(*sys.argv[1:])
