"""Schemas of pydantic models with the official openai package: enforced, or refused with the path of the condition.

    python pydantic_schemas.py <quire>
"""

import json
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Literal, Optional, Union
from uuid import UUID

import jsonschema
import openai
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, TypeAdapter

from server import run_tests, server, wait_until_idle, wait_until_ready

MODEL = "opt-story-3m"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


class Colour(str, Enum):
    red = "red"
    blue = "blue"


class Closed(BaseModel):
    """Without further properties, so that documents end."""

    model_config = ConfigDict(extra="forbid")


class Cat(Closed):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=0, le=9)]
    nickname: Annotated[str, Field(max_length=4)] | None = None


class Dog(Closed):
    kind: Literal["dog"]
    good: bool = True


class Tree(Closed):
    leaf: bool
    below: Optional["Tree"] = None


INT64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TYPES = [
    set[Colour],
    frozenset[bool],
    set[Literal["a", "b", 3]],
    dict[Literal["x", "y"], bool],
    INT64,
    Annotated[Union[Cat, Dog], Field(discriminator="kind")],
    tuple[Annotated[int, Field(ge=0, le=99)], Colour],
    Tree,
    datetime,
    date,
    UUID,
    IPv4Address,
]
# A pattern of names, whose schema allows other names too.
NAMES = dict[Annotated[str, Field(pattern="^[a-z]{1,3}$")], bool]
# Types of unbounded strings, which a random model may continue forever.
OPEN = [bytes, Path, SecretStr, timedelta, HttpUrl, dict[str, INT64], Decimal, NAMES]
# Types whose schemas allow more than pydantic: leap seconds, 29 February in every year, decimal numbers of any characters.
WIDE = [datetime, date, timedelta, HttpUrl, NAMES, Decimal]
# The pattern for decimal numbers in pydantic up to version 2.13.
DECIMAL = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}


def ask(c, schema, strict=True, **options):
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": strict}}
    return c.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=form, max_tokens=300, **options).choices


def test_types_are_kept_to(address, c):
    ended = 0
    for kind in [*TYPES, *OPEN]:
        adapter = TypeAdapter(kind)
        for choice in ask(c, adapter.json_schema(), temperature=1, seed=5, n=4):
            if choice.finish_reason == "stop":
                jsonschema.validate(json.loads(choice.message.content), adapter.json_schema())
                if kind not in WIDE:
                    adapter.validate_json(choice.message.content)
                ended += 1
            assert choice.finish_reason == "stop" or kind in OPEN or kind is Tree, (kind, choice)
    print(f"{ended} documents are valid")
    for choice in ask(c, DECIMAL, temperature=1, seed=5, n=8):
        if choice.finish_reason == "stop":
            Decimal(json.loads(choice.message.content))


class Order(Closed):
    colours: set[Colour]
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]
    number: INT64


def test_models_are_parsed(address, c):
    for seed in range(4):
        answer = c.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Order, max_tokens=300, seed=seed)
        assert isinstance(answer.choices[0].message.parsed, Order)


def test_sets_of_any_strings_are_refused_only_if_strict(address, c):
    class Words(BaseModel):
        words: set[str]

    try:
        ask(c, Words.model_json_schema())
    except openai.BadRequestError as refusal:
        assert "#/properties/words/uniqueItems" in refusal.message and "response_format" in refusal.param, refusal
    else:
        raise AssertionError("a set of strings is taken")
    assert ask(c, Words.model_json_schema(), strict=False)


def test_huge_constants_come_out_unchanged(address, c):
    number = 12345678901234567890123
    assert ask(c, {"const": number})[0].message.content == str(number)
    answer = c.completions.create(model=MODEL, prompt="x", max_tokens=60, extra_body={"guided_json": json.dumps({"enum": [number]})})
    assert answer.choices[0].text == str(number)


def main(quire):
    with server(quire) as address:
        wait_until_ready(address)
        run_tests(globals(), address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0))
        wait_until_idle(address)


if __name__ == "__main__":
    main(*sys.argv[1:])
