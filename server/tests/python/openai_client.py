"""The official openai package against `quire serve`: its answers equal the engine's outputs.

    python openai_client.py <quire> <golden models>
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import openai

from server import metric, refused, server, wait_until

PROMPT = "Once upon a time"


def client(address, **options):
    # The package retries by itself while the model is being loaded.
    options = {"api_key": "key", "max_retries": 20, **options}
    return openai.OpenAI(base_url=f"{address}/v1", **options)


def engine(quire, *options):
    """Returns the engine's own outputs for one raw prompt."""
    done = subprocess.run([quire, "--json", "--raw", *options], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["outputs"]


def test_models(c, model, run):
    assert [m.id for m in c.models.list()] == [model]
    assert c.models.retrieve(model).owned_by == "quire"
    assert refused(openai.NotFoundError, lambda: c.models.retrieve("gpt-4")).code == "model_not_found"


def test_embeddings(c, model, run):
    """The package requests base64 by default and returns numbers."""
    texts = [PROMPT, "One day, a fox", PROMPT]
    answer = c.embeddings.create(model=model, input=texts)
    first, second, again = (item.embedding for item in answer.data)
    assert first == again != second
    assert abs(sum(x * x for x in first) - 1) < 1e-5
    numbers = c.embeddings.create(model=model, input=PROMPT, encoding_format="float", dimensions=len(first))
    assert all(abs(a - b) < 1e-6 for a, b in zip(numbers.data[0].embedding, first, strict=True))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > numbers.usage.prompt_tokens
    error = refused(openai.BadRequestError, lambda: c.embeddings.create(model=model, input=PROMPT, dimensions=3))
    assert error.param == "dimensions"


def test_completions(c, model, run):
    want = run("--prompt", PROMPT, "--temperature", "0", "--max-tokens", "30")[0]
    answer = c.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=30)
    assert answer.choices[0].text == want["text"]
    assert answer.choices[0].finish_reason == want["finish_reason"]
    assert answer.usage.completion_tokens == len(want["token_ids"])
    two = c.completions.create(model=model, prompt=[PROMPT, "A fox"], temperature=0, max_tokens=30)
    assert two.choices[0].text == want["text"] and len(two.choices) == 2
    echoed = c.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=30, echo=True)
    assert echoed.choices[0].text == PROMPT + want["text"]


def test_sampling(c, model, run):
    options = {"temperature": 0.9, "top_p": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.2, "seed": 5}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    want = run("--prompt", PROMPT, "--n", "3", "--max-tokens", "20", *words)
    answer = c.completions.create(model=model, prompt=PROMPT, n=3, max_tokens=20, **options)
    assert [choice.text for choice in answer.choices] == [output["text"] for output in want]
    best = run("--prompt", PROMPT, "--n", "1", "--best-of", "3", "--max-tokens", "20", *words)
    answer = c.completions.create(model=model, prompt=PROMPT, best_of=3, max_tokens=20, **options)
    assert [choice.text for choice in answer.choices] == [output["text"] for output in best]


def test_extensions(c, model, run):
    want = run("--prompt", PROMPT, "--beam-width", "4", "--n", "2", "--max-tokens", "20", "--length-penalty", "0.7")
    extra = {"use_beam_search": True, "length_penalty": 0.7}
    answer = c.completions.create(model=model, prompt=PROMPT, best_of=4, n=2, max_tokens=20, extra_body=extra)
    assert [choice.text for choice in answer.choices] == [output["text"] for output in want]
    words = ["--temperature", "1", "--seed", "3", "--top-k", "9", "--min-p", "0.05", "--repetition-penalty", "1.1"]
    want = run("--prompt", PROMPT, "--max-tokens", "40", "--ignore-eos", *words)
    extra = {"top_k": 9, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True}
    answer = c.completions.create(model=model, prompt=PROMPT, temperature=1, seed=3, max_tokens=40, extra_body=extra)
    assert answer.choices[0].text == want[0]["text"]


def test_stop(c, model, run):
    want = run("--prompt", PROMPT, "--temperature", "0", "--max-tokens", "60", "--stop", "e", "--stop", "zz")[0]
    answer = c.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=60, stop=["e", "zz"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (want["text"], "stop")


def test_logprobs(c, model, run):
    want = run("--prompt", PROMPT, "--temperature", "0", "--max-tokens", "10", "--logprobs", "2")[0]["logprobs"]
    got = c.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=10, logprobs=2).choices[0].logprobs
    close = lambda a, b: abs(a - b) < 1e-5
    assert all(close(a, b["logprob"]) for a, b in zip(got.token_logprobs, want, strict=True))
    for got, want in zip(got.top_logprobs, want, strict=True):
        assert all(close(a, b[1]) for a, b in zip(sorted(got.values(), reverse=True), want["top"]))


def test_echo(c, model, run):
    options = {"model": model, "temperature": 0, "echo": True, "logprobs": 1, "extra_body": {"ignore_eos": True}}
    whole = c.completions.create(prompt=PROMPT, max_tokens=8, **options).choices[0]
    assert whole.logprobs.token_logprobs[0] is None and whole.logprobs.top_logprobs[0] is None
    given = c.completions.create(prompt=PROMPT, max_tokens=0, **options)
    scored = given.choices[0]
    assert (scored.text, scored.finish_reason, given.usage.completion_tokens) == (PROMPT, "length", 0)
    length = given.usage.prompt_tokens
    assert (len(scored.logprobs.tokens), len(whole.logprobs.tokens)) == (length, length + 8)
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert getattr(scored.logprobs, field) == getattr(whole.logprobs, field)[:length], field
    assert refused(openai.BadRequestError, lambda: c.completions.create(model=model, prompt=PROMPT, max_tokens=0))


def test_streaming(c, model, run):
    options = {"model": model, "prompt": PROMPT, "n": 2, "seed": 1, "max_tokens": 40}
    want = [choice.text for choice in c.completions.create(**options).choices]
    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in c.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == want and None not in reasons
    assert usage.completion_tokens <= 80 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_errors(c, model, run):
    ask = lambda **fields: (lambda: c.completions.create(**{"model": model, "prompt": PROMPT, **fields}))
    assert refused(openai.NotFoundError, ask(model="gpt-4")).code == "model_not_found"
    assert refused(openai.BadRequestError, ask(max_tokens=-1)).param == "max_tokens"
    assert refused(openai.BadRequestError, ask(temperature=-1)).param == "temperature"
    assert refused(openai.BadRequestError, ask(suffix="x")).param == "suffix"
    assert refused(openai.BadRequestError, ask(max_tokens=10**6)).code == "context_length_exceeded"
    strangers = c.with_options(api_key="wrong")
    assert refused(openai.AuthenticationError, strangers.models.list).status_code == 401


def test_timeouts(c, model, run):
    long = {"model": model, "prompt": PROMPT, "n": 64, "max_tokens": 500, "extra_body": {"ignore_eos": True}}
    hasty = c.with_options(timeout=0.05, max_retries=0)
    refused(openai.APITimeoutError, lambda: hasty.completions.create(**long))
    address = str(c.base_url).removesuffix("/v1/")
    wait_until(lambda: metric(address, "quire:kv_blocks_used") == 0)
    # Closing a stream halfway also cancels the request.
    with c.completions.create(**long, stream=True) as stream:
        next(iter(stream))
    wait_until(lambda: metric(address, "quire:kv_blocks_used") == 0)


def test_chat(c, model, run, prompt):
    messages = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": PROMPT}]
    text = prompt(messages)
    want = run(*text, "--temperature", "0", "--max-tokens", "30")[0]
    options = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 30}
    answer = c.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", want["text"])
    assert len(choice.logprobs.content) == len(want["token_ids"])
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert answer.usage.completion_tokens == len(want["token_ids"])
    chunks = [chunk.choices[0] for chunk in c.chat.completions.create(**options, stream=True)]
    assert chunks[0].delta.role == "assistant"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == want["text"]
    assert chunks[-1].finish_reason == want["finish_reason"]
    options = {"n": 3, "seed": 4, "temperature": 1, "max_completion_tokens": 9}
    several = c.chat.completions.create(model=model, messages=messages, **options)
    want = run(*text, "--temperature", "1", "--seed", "4", "--n", "3", "--max-tokens", "9")
    got = [choice.message.content for choice in several.choices]
    assert got == [output["text"] for output in want], (got, want)


def test_golden(c, model, golden):
    """Texts equal the golden texts of Hugging Face transformers."""
    for prompt in golden["prompts"]:
        want = prompt["greedy"]
        options = {"model": model, "prompt": prompt["ids"], "temperature": 0, "max_tokens": len(want["ids"])}
        answer = c.completions.create(**options, extra_body={"ignore_eos": True})
        assert answer.choices[0].text == want["text"], prompt["name"]


def run_tests(quire, address, model, options, prompt):
    run = lambda *words: engine(quire, *options, *words)
    with client(address) as c:
        for name, test in list(globals().items()):
            if name.startswith("test_") and name not in ("test_chat", "test_golden"):
                test(c, model, run)
                print(f"{model}: {name}")
        test_chat(c, model, run, prompt)
        print(f"{model}: test_chat")


def ids(address, tokens):
    """Returns a prompt for the command line, with the server's tokens for a text."""
    body = json.dumps(tokens).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer key"}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/tokenize", body, headers)) as response:
        tokens = json.load(response)["tokens"]
    return ["--prompt-ids", ",".join(map(str, tokens))]


def main(quire, golden):
    with server(quire, "--api-key", "key") as address:
        # The bundled model's template puts each message on its own line.
        prompt = lambda messages: ["--prompt", "\n".join(message["content"] for message in messages)]
        run_tests(quire, address, "opt-story-3m", [], prompt)
    directory = Path(golden) / "qwen3"
    with server(quire, "--api-key", "key", "--model", str(directory)) as address:

        def chatml(messages):
            text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
            return ids(address, {"prompt": text + "<|im_start|>assistant\n", "add_special_tokens": False})

        run_tests(quire, address, "qwen3", ["--model", str(directory)], chatml)
        with client(address) as c:
            test_golden(c, "qwen3", json.loads((directory / "golden.json").read_text()))
        print("qwen3: test_golden")


if __name__ == "__main__":
    main(*sys.argv[1:])
