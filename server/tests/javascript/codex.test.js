// The published Codex against `quire serve`: a turn with all of its tools.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { serve } from "./server.js";

const FIXTURES = new URL("../../../tests/fixtures/", import.meta.url).pathname;
const FAMILY = "qwen3";
// Codex's instructions and tools are about ten thousand tokens in a small vocabulary.
const POSITIONS = 65536;

// A small model with random weights and the template of a model family that supports tools.
const folder = mkdtempSync(join(tmpdir(), "quire-codex-"));
const model = join(folder, FAMILY);
cpSync(join(FIXTURES, "golden", FAMILY), model, { recursive: true });
edit("config.json", (config) => ({ ...config, max_position_embeddings: POSITIONS }));
edit("tokenizer_config.json", (config) => ({
    ...config, model_max_length: POSITIONS, chat_template: readFileSync(join(FIXTURES, `chat/templates/${FAMILY}.jinja`), "utf8"),
}));

// A random model's output ends soon if many tokens end it.
const ends = Array.from({ length: 64 }, (_, id) => id * 8);
writeFileSync(join(model, "generation_config.json"), JSON.stringify({ eos_token_id: ends }));

function edit(file, change) {
    const path = join(model, file);
    writeFileSync(path, JSON.stringify(change(JSON.parse(readFileSync(path, "utf8")))));
}

const server = serve("--model", model, "--served-model-name", FAMILY);
after(() => rmSync(folder, { recursive: true }));

test("a turn with all tools is answered", async () => {
    // Codex rejects a home directory inside the folder for temporary files.
    const home = mkdtempSync(join(homedir(), ".quire-codex-"));
    try {
        mkdirSync(join(folder, "work"));
        writeFileSync(join(home, "config.toml"), `
model = "${FAMILY}"
model_provider = "quire"
[model_providers.quire]
name = "quire"
base_url = "${server.address}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
`);
        const options = ["exec", "--json", "--skip-git-repo-check", "Say hello."];
        const child = spawn("node_modules/.bin/codex", options, {
            stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, CODEX_HOME: home, PWD: join(folder, "work") },
        });
        const output = { stdout: "", stderr: "" };
        for (const stream of ["stdout", "stderr"]) child[stream].on("data", (data) => (output[stream] += data));
        const status = await new Promise((resolve) => child.on("close", resolve));
        assert.equal(status, 0, output.stdout + output.stderr);
        const events = output.stdout.trim().split("\n").map((line) => JSON.parse(line));
        const completed = events.find((event) => event.type === "turn.completed");
        assert(completed?.usage.output_tokens > 0, output.stdout);
    } finally {
        rmSync(home, { recursive: true });
    }
});
