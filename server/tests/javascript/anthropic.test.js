// The official Anthropic package for JavaScript against `quire serve`.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { aborts, continued, serve } from "./server.js";

const MODEL = "opt-story-3m";
const TURNS = ["Once upon a time there was a fox.", "What did the fox say?"];
const GREEDY = { temperature: 0, max_tokens: 12 };

const server = serve();
const client = () => new Anthropic({ baseURL: server.address, apiKey: "none", maxRetries: 0 });
const user = (content) => ({ role: "user", content });
const fields = (more) => ({ model: MODEL, ...GREEDY, messages: [user(TURNS[0])], ...more });

test("messages, whole and streamed, go back as history", async () => {
    const messages = [];
    for (const turn of TURNS) {
        messages.push(user(turn));
        const whole = await client().messages.create(fields({ messages }));
        const stream = client().messages.stream(fields({ messages }));
        let text = "";
        stream.on("text", (delta) => (text += delta));
        const final = await stream.finalMessage();
        const texts = messages.map((m) => (typeof m.content === "string" ? m.content : m.content[0].text));
        assert.equal(whole.content[0].text, await continued(server.address, texts, GREEDY));
        assert.deepEqual(final.content, whole.content);
        assert.equal(text, whole.content[0].text);
        assert.equal(final.stop_reason, whole.stop_reason);
        assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
        const input = ({ usage }) => usage.input_tokens + usage.cache_read_input_tokens;
        assert.equal(input(final), input(whole));
        assert.equal((await client().messages.countTokens({ model: MODEL, messages })).input_tokens, input(whole));
        messages.push({ role: "assistant", content: whole.content });
    }
});

test("events come in order", async () => {
    const kinds = [];
    for await (const event of await client().messages.create(fields({ stream: true, stop_sequences: ["\n"] }))) kinds.push(event.type);
    assert.deepEqual(kinds.filter((kind) => kind !== "content_block_delta" && kind !== "ping"), [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]);
});

test("errors have their classes", async () => {
    const image = [{ type: "image", source: { type: "base64", media_type: "image/png", data: "" } }];
    await assert.rejects(client().messages.create(fields({ messages: [user(image)] })), (error) => {
        assert(error instanceof Anthropic.BadRequestError);
        assert.equal(error.error.error.type, "invalid_request_error");
        return error.message.includes("image");
    });
    await assert.rejects(client().messages.create(fields({ model: "other" })), Anthropic.NotFoundError);
});

test("a stream that is left is cancelled", async () => {
    await aborts(server.address, async () => {
        const stream = client().messages.stream({ ...fields({ max_tokens: 400 }), ignore_eos: true });
        await new Promise((resolve) => stream.once("text", resolve));
        stream.abort();
        await stream.done().catch(() => {});
    });
});
