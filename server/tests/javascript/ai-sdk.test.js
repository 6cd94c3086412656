// Vercel's AI SDK against `quire serve`, with its OpenAI provider and its provider for compatible servers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";
import { aborts, continued, metric, serve, until } from "./server.js";

const MODEL = "opt-story-3m";
const SYSTEM = "A story for children.";
const TURNS = ["Once upon a time there was a fox.", "What did the fox say?", "And then?"];
const SHORT = { temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
// The same options as request fields.
const SHORT_FIELDS = { temperature: 0, max_tokens: 12 };
const LONG = { prompt: "A fox", temperature: 1, maxOutputTokens: 480, maxRetries: 0 };

const server = serve();
// The SDK cannot send these fields, so a custom `fetch` adds them.
const many = (url, init) => fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), n: 64, ignore_eos: true }) });
const providers = {
    openai: (options) => createOpenAI({ baseURL: `${server.address}/v1`, apiKey: "none", ...options }),
    compatible: (options) => createOpenAICompatible({ name: "quire", baseURL: `${server.address}/v1`, includeUsage: true, ...options }),
};
const chat = (provider, options) => (provider === "openai" ? providers.openai(options).chat(MODEL) : providers.compatible(options).chatModel(MODEL));
const texts = (messages) => messages.map(({ content }) => (typeof content === "string" ? content : content.map((part) => part.text).join("")));

for (const provider of Object.keys(providers)) {
    test(`${provider}: answers are sent back as history`, async () => {
        const whole = async (messages) => {
            const { text, response, finishReason, usage } = await generateText({ model: chat(provider), system: SYSTEM, messages, ...SHORT });
            return { text, finishReason, usage, said: response.messages };
        };
        const stream = async (messages) => {
            const answer = streamText({ model: chat(provider), system: SYSTEM, messages, ...SHORT });
            let text = "";
            for await (const part of answer.textStream) text += part;
            return { text, finishReason: await answer.finishReason, usage: await answer.usage, said: (await answer.response).messages };
        };
        for (const say of [whole, stream]) {
            const messages = [];
            for (const turn of TURNS) {
                messages.push({ role: "user", content: turn });
                const { text, finishReason, usage, said } = await say(messages);
                assert.equal(text, await continued(server.address, [SYSTEM, ...texts(messages)], SHORT_FIELDS));
                assert.deepEqual([finishReason, usage.outputTokens], ["length", 12]);
                messages.push(...said);
            }
        }
    });

    test(`${provider}: completions`, async () => {
        const model = provider === "openai" ? providers.openai().completion(MODEL) : providers.compatible().completionModel(MODEL);
        // The SDK builds its own prompts for completion models, which end at the assistant's turn.
        const answer = await generateText({ model, prompt: TURNS[0], ...SHORT });
        const stream = streamText({ model, prompt: TURNS[0], ...SHORT });
        let text = "";
        for await (const part of stream.textStream) text += part;
        assert(answer.text);
        assert.equal(text, answer.text);
    });

    test(`${provider}: parts, settings and options`, async () => {
        const want = await continued(server.address, [TURNS[0]], SHORT_FIELDS);
        const content = [{ type: "text", text: TURNS[0] }];
        const settings = { topP: 1, presencePenalty: 0, frequencyPenalty: 0, seed: 1, stopSequences: ["~~"], toolChoice: "none" };
        const openai = { user: "someone", parallelToolCalls: false, store: false, metadata: { session: "7" }, serviceTier: "auto", promptCacheKey: "key", safetyIdentifier: "someone", textVerbosity: "low", reasoningEffort: "low" };
        const quire = { user: "someone", reasoningEffort: "low", textVerbosity: "low" };
        const answer = await generateText({ model: chat(provider), messages: [{ role: "user", content }], ...SHORT, ...settings, providerOptions: { openai, quire } });
        assert.equal(answer.text, want);
    });

    test(`${provider}: errors`, async () => {
        const refused = (model, more) => assert.rejects(generateText({ model, ...SHORT, prompt: "A fox", ...more }), (error) => {
            assert(APICallError.isInstance(error), String(error));
            assert.equal(error.isRetryable, false);
            return true;
        });
        await refused(chat(provider), { topP: 7 });
        await refused(chat(provider), { prompt: "fox ".repeat(600) });
        await refused(chat(provider), { temperature: 1e9 });
    });

    test(`${provider}: what is left is aborted`, async () => {
        const model = chat(provider, { fetch: many });
        await aborts(server.address, async () => {
            const controller = new AbortController();
            const stream = streamText({ model, ...LONG, abortSignal: controller.signal });
            for await (const part of stream.fullStream) {
                if (part.type === "text-delta") controller.abort();
            }
        });
        await aborts(server.address, async () => {
            const controller = new AbortController();
            const answer = generateText({ model, ...LONG, abortSignal: controller.signal });
            await until(async () => (await metric(server.address, "vllm:num_requests_running")) > 0);
            controller.abort();
            await assert.rejects(answer, { name: "AbortError" });
        });
        await aborts(server.address, () => assert.rejects(generateText({ model, ...LONG, abortSignal: AbortSignal.timeout(300) })));
    });
}
