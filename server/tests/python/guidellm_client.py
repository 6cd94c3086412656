"""guidellm's own client against `quire serve`: each form of request, streamed and whole, as its benchmarks send them.

    python guidellm_client.py <quire>

Its packages for models and data sets (torch, transformers, datasets) are not installed, because the client does not need them.
"""

import asyncio
import sys

from guidellm.backends.openai import OpenAIHTTPBackend
from guidellm.schemas import GenerationRequest, RequestInfo, UsageMetrics
from guidellm.schemas.backends import OpenAIHTTPBackendArgs

from server import server, wait_until_idle, wait_until_ready

TOKENS = 12
FORMATS = ["/v1/completions", "/v1/chat/completions", "/v1/responses"]


async def ask(address, form, stream):
    """Returns the client's last response to one request."""
    backend = OpenAIHTTPBackend(OpenAIHTTPBackendArgs(target=address, request_format=form, stream=stream))
    await backend.process_startup()
    await backend.validate()
    request = GenerationRequest(
        columns={"text_column": ["Once upon a time"]}, output_metrics=UsageMetrics(text_tokens=TOKENS))
    last = None
    async for response, info in backend.resolve(request, RequestInfo()):
        last = response or last
    await backend.process_shutdown()
    return last, info


def main(quire):
    with server(quire) as address:
        wait_until_ready(address)
        for form in FORMATS:
            for stream in [True, False]:
                response, info = asyncio.run(ask(address, form, stream))
                assert response.text, (form, stream, response)
                assert response.output_metrics.total_tokens == TOKENS, (form, stream, response)
                assert response.input_metrics.total_tokens > 0
                if stream:
                    timings = info.timings
                    assert timings.first_token_iteration and timings.last_token_iteration >= timings.first_token_iteration
                print(f"{form}, {'streamed' if stream else 'whole'}: {response.output_metrics.total_tokens} tokens")
        wait_until_idle(address)


if __name__ == "__main__":
    main(*sys.argv[1:])
