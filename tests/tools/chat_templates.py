#!/usr/bin/env python3
"""Renders the templates and conversations in tests/fixtures/chat with Hugging Face's `apply_chat_template`.

    python3 -m venv venv && venv/bin/pip install transformers==5.23.0 jinja2==3.1.6
    venv/bin/python tests/tools/chat_templates.py

Writes tests/fixtures/chat/expected.json, which engine/tests/chat_templates.rs compares with the engine's output. vLLM's server changes
a conversation before it passes it to transformers. This script makes the same changes to texts in parts and to function arguments.
"""

import copy
import datetime
import json
import os

import jinja2
import transformers.utils.chat_template_utils as utils
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures/chat")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
ALL = ["system", "developer", "user", "assistant", "tool"]
# Roles whose messages a template reads in parts, and templates with unusual forms of function arguments or empty content.
IN_PARTS = {"vision": ALL, "only_parts": ALL, "gemma": ["user", "assistant"], "mistral": ["user"],
            "glm": ["system", "user", "assistant"]}
ONLY_IN_PARTS = {"only_parts"}
ARGUMENTS_AS_TEXT = {"deepseek"}
SILENCE_IS_NULL = {"deepseek"}


class Clock(datetime.datetime):
    """A clock with a fixed time."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 5, 14, 3, 9, 123456)


def as_vllm(message, template):
    """Returns a message as vLLM's server passes it to transformers."""
    message = copy.deepcopy(message)
    role, content = message["role"], message.get("content")
    if content is None and role == "assistant" and not message.get("tool_calls"):
        content = ""
    if isinstance(content, list):
        texts = [part if isinstance(part, str) else part[part["type"]] for part in content]
        parts = role in IN_PARTS.get(template, [])
        content = [{"type": "text", "text": text} for text in texts] if parts else "\n".join(texts)
    elif isinstance(content, str) and template in ONLY_IN_PARTS:
        content = [{"type": "text", "text": content}]
    message = {"role": role, "content": content, **{k: v for k, v in message.items() if k not in ("role", "content")}}
    calls = message.pop("tool_calls", None)
    for call in calls or []:
        arguments = call["function"]["arguments"]
        if template not in ARGUMENTS_AS_TEXT:
            call["function"]["arguments"] = json.loads(arguments) if arguments else {}
    if calls:
        # Insert it in the same position as the engine.
        message = {"role": message.pop("role"), "content": message.pop("content"), "tool_calls": calls, **message}
    return message


def render(tokenizer, name, source, given, conversation, rendering):
    messages = given["conversations"][conversation]
    try:
        return apply(tokenizer, name, source, given, messages, rendering)
    except jinja2.exceptions.UndefinedError:
        # The template requires content. vLLM passes an empty string instead of none.
        messages = [{**m, "content": "" if m.get("content") is None else m["content"]} for m in messages]
        return apply(tokenizer, name, source, given, messages, rendering)


def apply(tokenizer, name, source, given, messages, rendering):
    messages = [as_vllm(message, name) for message in messages]
    options = {
        "tools": given["tools"] if rendering.get("tools") else None,
        "documents": given["documents"] if rendering.get("documents") else None,
        "add_generation_prompt": rendering.get("add_generation_prompt", True),
        "continue_final_message": rendering.get("continue_final_message", False),
        **rendering.get("arguments", {}),
    }
    if name not in SILENCE_IS_NULL:
        return tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    # As in transformers before version 5, which drops null fields.
    messages = [{k: v for k, v in m.items() if v is not None or k == "content"} for m in messages]
    return utils.render_jinja_template([messages], chat_template=source, **{**TOKENS, **options})[0][0]


def outcome(call):
    try:
        return {"text": call()}
    except Exception as error:
        # Keep the template's own error messages, but not Python's.
        own = type(error) is jinja2.exceptions.TemplateError
        return {"error": str(error) if own else None}


def expressions(given):
    """Yields the result of each line of expressions.txt."""
    messages = given["conversations"]["turns"]
    values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True,
              "tool": given["tools"][0], "schema": given["tools"][1]["function"]["parameters"]["properties"]["terms"],
              **TOKENS}
    with open(os.path.join(FOLDER, "expressions.txt"), encoding="utf-8") as lines:
        for source in lines.read().splitlines():
            yield {"source": source, **outcome(lambda: utils._compile_jinja_template(source).render(**values))}


def main():
    utils.datetime = Clock
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, "<unk>")), **TOKENS)
    with open(os.path.join(FOLDER, "conversations.json"), encoding="utf-8") as file:
        given = json.load(file)
    rendered = []
    for name in sorted(os.listdir(os.path.join(FOLDER, "templates"))):
        with open(os.path.join(FOLDER, "templates", name), encoding="utf-8", newline="") as file:
            source = file.read()
        name = name.removesuffix(".jinja")
        for index, rendering in enumerate(given["renderings"]):
            for conversation in rendering["conversations"]:
                result = outcome(lambda: render(tokenizer, name, source, given, conversation, rendering))
                rendered.append({"template": name, "conversation": conversation, "rendering": index, **result})
    expected = {"rendered": rendered, "expressions": list(expressions(given))}
    with open(os.path.join(FOLDER, "expected.json"), "w", encoding="utf-8") as file:
        json.dump(expected, file, ensure_ascii=False, indent=1)
        file.write("\n")
    print(len(rendered), "prompts,", sum("text" not in r for r in rendered), "refused;",
          len(expected["expressions"]), "expressions")


if __name__ == "__main__":
    main()
