// The official openai package for JavaScript against `quire serve`.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { aborts, continued, metric, serve, until } from "./server.js";

const MODEL = "opt-story-3m";
const SYSTEM = { role: "system", content: "A story for children." };
const TURNS = ["Once upon a time there was a fox.", "What did the fox say?", "And then?"];
const SHORT = { temperature: 0, max_tokens: 12 };
const LONG = { n: 64, max_tokens: 480, ignore_eos: true };

const server = serve();
const narrow = serve("--max-requests", "1");
const client = (options) => new OpenAI({ baseURL: `${server.address}/v1`, apiKey: "none", maxRetries: 0, ...options });
const user = (content) => ({ role: "user", content });
const create = (fields, options) => client().chat.completions.create({ model: MODEL, ...SHORT, ...fields }, options);

test("answers are sent back as history", async () => {
    const stream = async (messages) => {
        // The package's helper assembles the message. A stop string makes it finish properly.
        const stream = client().chat.completions.stream({ model: MODEL, messages, ...SHORT });
        return (await stream.finalChatCompletion()).choices[0].message;
    };
    const whole = async (messages) => (await create({ messages })).choices[0].message;
    for (const say of [whole, stream]) {
        const messages = [SYSTEM];
        for (const turn of TURNS) {
            messages.push(user(turn));
            const message = await say(messages);
            assert.equal(message.content, await continued(server.address, messages.map((m) => m.content), SHORT));
            messages.push(message);
        }
    }
});

test("streams with and without counts", async () => {
    const want = await continued(server.address, [TURNS[0]], SHORT);
    for (const streaming of [{}, { stream_options: { include_usage: false } }, { stream_options: { include_usage: true } }]) {
        const chunks = [];
        for await (const chunk of await create({ messages: [user(TURNS[0])], stream: true, ...streaming })) chunks.push(chunk);
        assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), want);
        const counts = chunks.filter((chunk) => chunk.usage);
        if (streaming.stream_options?.include_usage) {
            assert.deepEqual(counts, [chunks.at(-1)]);
            assert.equal(counts[0].usage.completion_tokens, 12);
        } else {
            assert.deepEqual(counts, []);
        }
    }
    let text = "";
    for await (const chunk of await client().completions.create({ model: MODEL, prompt: TURNS[0], ...SHORT, stream: true })) {
        text += chunk.choices[0].text;
    }
    assert.equal(text, want);
});

test("responses, whole and streamed", async () => {
    const fields = { model: MODEL, input: TURNS[0], temperature: 0, max_output_tokens: 12 };
    const whole = await client().responses.create(fields);
    assert.equal(whole.output_text, await continued(server.address, [TURNS[0]], SHORT));
    let text = "";
    for await (const event of await client().responses.create({ ...fields, stream: true })) {
        if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(text, whole.output_text);
    const final = await client().responses.stream(fields).finalResponse();
    assert.equal(final.output_text, whole.output_text);
});

test("fields that change nothing", async () => {
    const want = await continued(server.address, [TURNS[0]], SHORT);
    const fields = {
        tools: [], tool_choice: "none", response_format: { type: "text" }, parallel_tool_calls: true, store: false, metadata: {},
        service_tier: "auto", user: "someone", modalities: ["text"], stop: null, logit_bias: null, seed: null, n: null,
        functions: null, prediction: null, audio: null, web_search_options: null, stream_options: null,
    };
    for (const [field, value] of Object.entries(fields)) {
        const answer = await create({ messages: [user(TURNS[0])], [field]: value });
        assert.equal(answer.choices[0].message.content, want, field);
    }
    assert.equal((await create({ messages: [user(TURNS[0])], ...fields })).choices[0].message.content, want);
});

test("several at once", async () => {
    const answers = await Promise.all(TURNS.map((turn) => create({ messages: [user(turn)] })));
    const want = await Promise.all(TURNS.map((turn) => continued(server.address, [turn], SHORT)));
    assert.deepEqual(answers.map((answer) => answer.choices[0].message.content), want);
    const batch = await client().completions.create({ model: MODEL, prompt: TURNS, ...SHORT });
    assert.deepEqual(batch.choices.map((choice) => choice.text), want);
});

test("errors name the problem and the field", async () => {
    const messages = [user("A fox")];
    for (const [field, value] of Object.entries({ temperature: "hot", n: 0, max_tokens: -1, seed: {}, messages: [], no_such_field: 1 })) {
        await assert.rejects(create({ messages, [field]: value }), (error) => {
            assert(error instanceof OpenAI.BadRequestError, `${field}: ${error}`);
            assert.deepEqual([error.param, error.type], [field, "invalid_request_error"]);
            return true;
        });
    }
    await assert.rejects(create({ messages: [user("fox ".repeat(600))] }), { code: "context_length_exceeded", param: "messages" });
    await assert.rejects(create({ messages, model: "gpt-4" }), OpenAI.NotFoundError);
    await assert.rejects(client().moderations.create({ input: "x" }), OpenAI.NotFoundError);
});

test("models are listed, also by the server's host name and with a trailing slash", async () => {
    const named = server.address.replace("127.0.0.1", "localhost");
    for (const baseURL of [`${server.address}/v1`, `${named}/v1`, `${named}/v1/`]) {
        const models = [];
        for await (const model of client({ baseURL }).models.list()) models.push(model.id);
        assert.deepEqual(models, [MODEL]);
    }
});

test("abandoned streams and answers are aborted", async () => {
    const messages = [user("A fox")];
    await aborts(server.address, async () => {
        for await (const _ of await create({ messages, ...LONG, stream: true })) break;
    });
    await aborts(server.address, async () => {
        const stream = await create({ messages, ...LONG, stream: true });
        await stream[Symbol.asyncIterator]().next();
        stream.controller.abort();
    });
    await aborts(server.address, async () => {
        const controller = new AbortController();
        const answer = create({ messages, ...LONG }, { signal: controller.signal });
        await until(async () => (await metric(server.address, "vllm:num_requests_running")) > 0);
        controller.abort();
        await assert.rejects(answer, OpenAI.APIUserAbortError);
    });
    await aborts(server.address, () => assert.rejects(create({ messages, ...LONG }, { timeout: 300 }), OpenAI.APIConnectionTimeoutError));
});

test("a client that is told to retry does so", async () => {
    const at = (maxRetries) => client({ baseURL: `${narrow.address}/v1`, maxRetries }).chat.completions;
    const fields = { model: MODEL, messages: [user(TURNS[0])] };
    const want = await continued(narrow.address, [TURNS[0]], SHORT);
    await aborts(narrow.address, async () => {
        const stream = await at(0).create({ ...fields, ...LONG, stream: true });
        await stream[Symbol.asyncIterator]().next();
        await assert.rejects(at(0).create({ ...fields, ...SHORT }), (error) => {
            assert(error instanceof OpenAI.RateLimitError);
            assert.deepEqual([error.code, error.headers.get("retry-after")], ["rate_limit_exceeded", "1"]);
            return true;
        });
        const patient = at(20).create({ ...fields, ...SHORT });
        await until(async () => (await metric(narrow.address, "quire:requests_refused_total")) >= 2);
        stream.controller.abort();
        assert.equal((await patient).choices[0].message.content, want);
    });
});
