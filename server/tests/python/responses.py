"""Responses with the official openai package.

    python responses.py <quire>
"""

import json
import sys
import tempfile

import jsonschema
import openai
from pydantic import BaseModel, Field

from server import refused, run_tests, server, wait_until_idle, wait_until_ready

MODEL = "opt-story-3m"
TEMPLATE = """{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>{% endif %}
{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}
{% endfor %}"""
SHORT = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}
PARAMETERS = {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}}, "required": ["days"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}]


class Fox(BaseModel):
    name: str = Field(max_length=8, pattern="^[a-z]+$")
    tails: int = Field(ge=1, le=9)


def test_texts(c):
    whole = c.responses.create(**SHORT, input="Once upon a time", store=False)
    assert whole.output_text and whole.status in ("completed", "incomplete")
    assert whole.usage.output_tokens <= 12 and whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    chat = c.chat.completions.create(model=MODEL, temperature=0, max_tokens=12, messages=[{"role": "user", "content": "Once upon a time"}])
    assert whole.output_text == chat.choices[0].message.content
    # Output items are valid input.
    more = c.responses.create(**SHORT, input=[{"role": "user", "content": "Once upon a time"}, *whole.output, {"role": "user", "content": "And?"}])
    assert more.usage.input_tokens > whole.usage.total_tokens


def test_streams(c):
    whole = c.responses.create(**SHORT, instructions="Tell a story.", input="Once upon a time")
    events = list(c.responses.create(**SHORT, instructions="Tell a story.", input="Once upon a time", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    with c.responses.stream(**SHORT, instructions="Tell a story.", input="Once upon a time") as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(texts) == whole.output_text


def test_calls(c):
    options = {"model": MODEL, "input": "Once", "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200, "temperature": 0}
    [call] = c.responses.create(**options).output
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    with c.responses.stream(**options) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        [streamed] = stream.get_final_response().output
    assert "".join(deltas) == streamed.arguments == call.arguments and streamed.name == call.name == "weather"
    history = [{"role": "user", "content": "Once"}, call, {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    assert c.responses.create(**SHORT, input=history, tools=TOOLS).status


def test_parse(c):
    answer = c.responses.parse(model=MODEL, input="Once", text_format=Fox, max_output_tokens=300, temperature=0)
    assert isinstance(answer.output_parsed, Fox)


def test_refusals(c):
    for field, value in [("previous_response_id", "resp_1"), ("background", True), ("truncation", "auto")]:
        error = refused(openai.BadRequestError, lambda: c.responses.create(**SHORT, input="a", **{field: value}))
        assert error.param == field
    error = refused(openai.BadRequestError, lambda: c.responses.create(**SHORT, input="day " * 2000))
    assert (error.param, error.code) == ("input", "context_length_exceeded")


def main(quire):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        with server(quire, "--chat-template", template.name) as address:
            wait_until_ready(address)
            run_tests(globals(), openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0))
            wait_until_idle(address)


if __name__ == "__main__":
    main(*sys.argv[1:])
