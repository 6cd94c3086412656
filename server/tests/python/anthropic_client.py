"""Messages with the official anthropic package.

    python anthropic_client.py <quire>
"""

import json
import sys
import tempfile
from typing import Literal

import anthropic
import jsonschema
from pydantic import BaseModel

from server import aborts, post, refused, run_tests, server, wait_until_idle, wait_until_ready

MODEL = "opt-story-3m"
TEMPLATE = """{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>{% endif %}
{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}
{% endfor %}{% if enable_thinking %}<think>{% endif %}{% if false %}</think>{% endif %}"""
SHORT = {"model": MODEL, "max_tokens": 12}
# The package has no parameter for a temperature, but the API has the field.
GREEDY = {"temperature": 0}
ASK = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}}, "required": ["days"], "additionalProperties": False}
TOOLS = [{"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}]


class Coat(BaseModel):
    """A schema without bounds, which this package would send as descriptions."""

    colour: Literal["red", "white"]
    is_thick: bool


def test_texts(c, address):
    whole = c.messages.create(**SHORT, messages=ASK, extra_body=GREEDY, metadata={"user_id": "me"}, service_tier="auto")
    [block] = whole.content
    assert (whole.type, whole.role, block.type) == ("message", "assistant", "text") and whole.stop_reason in ("end_turn", "max_tokens")
    chat = post(address, "/v1/chat/completions", {"messages": ASK, **GREEDY, "max_tokens": 12})
    assert block.text == chat["choices"][0]["message"]["content"]
    usage = whole.usage
    assert usage.output_tokens <= 12 and usage.input_tokens + usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"]
    assert c.messages.count_tokens(model=MODEL, messages=ASK).input_tokens == chat["usage"]["prompt_tokens"]
    assert whole._request_id
    # The content of a message is valid input.
    more = c.messages.create(**SHORT, messages=[*ASK, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "And?"}])
    assert more.usage.input_tokens + more.usage.cache_read_input_tokens > chat["usage"]["prompt_tokens"]


def test_streams(c, address):
    options = {**SHORT, "messages": ASK, "system": "Tell a story.", "extra_body": GREEDY}
    whole = c.messages.create(**options)
    events = list(c.messages.create(**options, stream=True))
    assert [event.type for event in events if event.type != "content_block_delta"] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    with c.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert final.usage.cache_read_input_tokens + final.usage.input_tokens == whole.usage.cache_read_input_tokens + whole.usage.input_tokens


def test_stop_sequences(c, address):
    got = c.messages.create(**SHORT, messages=ASK, extra_body=GREEDY, stop_sequences=[" mouse"])
    assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", " mouse") and got.content[0].text == ", a small"


def test_calls(c, address):
    options = {"model": MODEL, "messages": ASK, "tools": TOOLS, "max_tokens": 200, "extra_body": GREEDY,
               "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    whole = c.messages.create(**options)
    [call] = whole.content
    assert (call.type, whole.stop_reason) == ("tool_use", "tool_use")
    jsonschema.validate(call.input, SCHEMA)
    with c.messages.stream(**options) as stream:
        deltas = [event.delta.partial_json for event in stream if event.type == "content_block_delta"]
        [streamed] = stream.get_final_message().content
    assert json.loads("".join(deltas)) == streamed.input == call.input and streamed.name == call.name == "weather"
    history = [*ASK, {"role": "assistant", "content": [call]},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}]
    assert c.messages.create(**SHORT, messages=history, tools=TOOLS).stop_reason


def test_thinking(c, address):
    options = {**SHORT, "messages": ASK, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    block = c.messages.create(**options).content[0]
    assert block.type == "thinking" and block.thinking and block.signature
    with c.messages.stream(**options) as stream:
        kinds = [event.type for event in stream]
        block = stream.get_final_message().content[0]
    assert block.thinking and block.signature and "signature" in kinds
    more = [*ASK, {"role": "assistant", "content": [block]}, {"role": "user", "content": "And?"}]
    assert c.messages.create(**SHORT, messages=more).stop_reason


def test_parse(c, address):
    answer = c.messages.parse(model=MODEL, messages=ASK, output_format=Coat, max_tokens=300, extra_body=GREEDY)
    assert isinstance(answer.parsed_output, Coat)


def test_betas(c, address):
    got = c.beta.messages.create(**SHORT, messages=ASK, betas=["context-management-2025-06-27"],
                                 context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
    assert got.content


def test_refusals(c, address):
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}]
    error = refused(anthropic.BadRequestError, lambda: c.messages.create(**SHORT, messages=image))
    assert error.body["error"]["type"] == "invalid_request_error" and "image" in error.body["error"]["message"]
    error = refused(anthropic.NotFoundError, lambda: c.messages.create(model="other", max_tokens=1, messages=ASK))
    assert error.body["error"]["type"] == "not_found_error" and error.request_id
    refused(anthropic.BadRequestError, lambda: c.messages.create(**SHORT, messages=[{"role": "user", "content": "day " * 2000}]))


def test_disconnects(c, address):
    with aborts(address):
        stream = c.messages.create(model=MODEL, max_tokens=400, messages=ASK, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()


def main(quire):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        with server(quire, "--chat-template", template.name, "--api-key", "secret") as address:
            wait_until_ready(address)
            for key in [{"api_key": "wrong"}, {"auth_token": "wrong"}]:
                client = anthropic.Anthropic(base_url=address, max_retries=0, **key)
                refused(anthropic.AuthenticationError, lambda: client.messages.create(**SHORT, messages=ASK))
            client = anthropic.Anthropic(base_url=address, auth_token="secret", api_key=None, max_retries=0)
            assert client.messages.create(**SHORT, messages=ASK).content
            client = anthropic.Anthropic(base_url=address, api_key="secret", max_retries=0)
            assert client.messages.create(**SHORT, messages=ASK).content
        with server(quire, "--chat-template", template.name) as address:
            wait_until_ready(address)
            run_tests(globals(), anthropic.Anthropic(base_url=address, api_key="none", max_retries=0), address)
            wait_until_idle(address)


if __name__ == "__main__":
    main(*sys.argv[1:])
