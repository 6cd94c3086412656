"""JSON schemas of json-schema.org's test suite, enforced on a small model with random weights and checked by jsonschema.

    python schemas.py <quire> <folder of golden models> <folder of chat templates> <file of schemas> [seeds]

A document that ends by itself must be valid. A truncated document must be a prefix of JSON. A refused schema must have a reason.
Prints the number of enforced and refused schemas for each keyword.
"""

import decimal
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, InvalidOperation
from pathlib import Path

import openai
import pydantic_core
from jsonschema import Draft202012Validator

from models import model_with_room
from server import server, wait_until_idle, wait_until_ready

FAMILY = "qwen3"
SAMPLES, TOKENS = 4, 160
# A random model writes long numbers, whose remainders must be exact, in every thread.
decimal.DefaultContext.prec = 1000
# A bias towards closing tokens makes documents end.
CLOSING = ['"', "}", "]", '"}', '"]', "}}", "]}"]



def number(text):
    """Parses a number as a decimal: 6.1 is a multiple of 0.0001 in decimal but not in binary. Huge exponents need a float."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def exact(text):
    """Parses JSON with such numbers."""
    return json.loads(text, parse_float=number)


def judge(case, text, ended):
    if ended:
        document = exact(text)
        schema = json.dumps(case["schema"])
        # Python's regular expressions do not support Unicode classes.
        if r"\\p{" not in schema:
            Draft202012Validator(exact(schema)).validate(document)
    elif text.strip():
        pydantic_core.from_json(text, allow_partial="trailing-strings")


def ask(client, case, seed, bias):
    """Returns the numbers of finished and truncated documents, or the reason why the schema is refused."""
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": case["schema"], "strict": True}}
    try:
        answer = client.chat.completions.create(
            model=FAMILY, messages=[{"role": "user", "content": "x"}], response_format=form, temperature=1.2, seed=seed,
            n=SAMPLES, max_tokens=TOKENS, logit_bias=bias)
    except openai.BadRequestError as refusal:
        assert refusal.param.startswith("response_format.json_schema.schema") and refusal.message, refusal
        return None
    for choice in answer.choices:
        try:
            judge(case, choice.message.content, choice.finish_reason == "stop")
        except Exception as why:
            raise AssertionError(f"{case['name']}: {choice.message.content!r} under {json.dumps(case['schema'])}") from why
    return Counter(choice.finish_reason for choice in answer.choices)


def main(quire, golden, templates, schemas, seeds="1"):
    cases = json.loads(Path(schemas).read_text())
    vocabulary = json.loads((Path(golden) / FAMILY / "tokenizer.json").read_text())["model"]["vocab"]
    bias = {str(vocabulary[text]): 4 for text in CLOSING if text in vocabulary}
    with model_with_room(golden, templates, FAMILY) as model, server(quire, "--model", model, "--served-model-name", FAMILY) as address:
        wait_until_ready(address)
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        work = [(case, seed) for case in cases for seed in range(int(seeds))]
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda item: ask(client, *item, bias), work))
        wait_until_idle(address)
    kept, refused, ends = Counter(), Counter(), Counter()
    for (case, seed), result in zip(work, results):
        if seed == 0:
            (refused if result is None else kept)[case["name"].split(":")[0]] += 1
        ends.update(result or {})
    for keyword in sorted(kept | refused):
        print(f"{keyword}: {kept[keyword]} enforced, {refused[keyword]} refused")
    print(f"{sum(kept.values())} schemas enforced, {sum(refused.values())} refused; {ends['stop']} documents valid, {ends['length']} cut")
    assert sum(kept.values()) >= 151 and ends["stop"] > 20 * ends["length"]


if __name__ == "__main__":
    main(*sys.argv[1:])
