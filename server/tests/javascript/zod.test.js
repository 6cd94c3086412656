// Schemas of Zod 4 against `quire serve`: enforced, or refused with the path of the condition.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import * as z from "zod";
import { serve } from "./server.js";

const MODEL = "opt-story-3m";
const MESSAGES = [{ role: "user", content: "Once upon a time" }];

const server = serve();
const client = () => new OpenAI({ baseURL: `${server.address}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (schema, options) => {
    const response_format = { type: "json_schema", json_schema: { name: "it", strict: true, schema } };
    return client().chat.completions.create({ model: MODEL, messages: MESSAGES, response_format, max_tokens: 300, ...options });
};

const cat = z.object({ kind: z.literal("cat"), lives: z.int().min(0).max(9), nickname: z.string().max(4).optional() });
const dog = z.object({ kind: z.literal("dog"), good: z.boolean() });
// Schemas whose documents are bounded in length.
const SHORT = {
    literals: z.literal(["a", "b", 3, null]),
    record: z.record(z.enum(["x", "y"]), z.boolean()),
    union: z.discriminatedUnion("kind", [cat, dog]),
    nested: z.object({ pet: z.union([cat, dog]).nullable(), flags: z.array(z.boolean()).max(2) }),
    tuple: z.tuple([z.int().min(0).max(99), z.enum(["red", "blue"])]),
    uuid: z.uuid(),
    date: z.iso.date(),
    ipv4: z.ipv4(),
    never: z.object({ a: z.never().optional(), b: z.boolean() }),
};
// Schemas whose documents may have any length.
const OPEN = {
    email: z.object({ to: z.email() }),
    names: z.record(z.string(), z.boolean()),
    integer: z.int(),
    datetime: z.iso.datetime(),
    duration: z.iso.duration(),
    url: z.url(),
    base64: z.base64(),
    hostname: z.hostname(),
    e164: z.e164(),
    patterns: z.string().regex(/^a+/).regex(/b$/),
};

for (const [name, schema] of Object.entries({ ...SHORT, ...OPEN })) {
    test(`${name} is kept to`, async () => {
        const { choices } = await ask(z.toJSONSchema(schema), { temperature: 1, seed: 7, n: 4 });
        for (const { message, finish_reason } of choices) {
            if (finish_reason !== "stop") assert(name in OPEN, message.content);
            else schema.parse(JSON.parse(message.content));
        }
    });
}

test("the package's own format is parsed", async () => {
    const pets = z.object({ pet: z.discriminatedUnion("kind", [cat.required(), dog]), mail: z.email().max(40) });
    for (const seed of [1, 2, 3]) {
        const answer = await client().chat.completions.parse({
            model: MODEL, messages: MESSAGES, response_format: zodResponseFormat(pets, "pets"), max_tokens: 400, seed,
        });
        assert(pets.parse(answer.choices[0].message.parsed));
    }
});

test("a union whose members overlap is refused only if it is strict", async () => {
    const schema = { oneOf: [z.object({ a: z.string().optional() }), z.object({ b: z.string().optional() })].map((one) => z.toJSONSchema(one)) };
    await assert.rejects(ask(schema), (error) => error.status === 400 && error.message.includes("#/oneOf"));
    const loose = { type: "json_schema", json_schema: { name: "it", schema } };
    const answer = await ask(schema, { response_format: loose, max_tokens: 20 });
    assert(answer.choices[0].message.content.startsWith("{"));
});
