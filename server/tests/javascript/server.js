// Runs `quire serve` as a process and observes it from outside.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after, before } from "node:test";

// Milliseconds to wait for an expected event.
const PATIENCE = 120_000;

/** Starts a server for the tests of a file. After the tests, checks that no request is left and stops it. `address` is set once the tests run. */
export function serve(...options) {
    const server = { address: undefined };
    let child, ended;
    before(async () => {
        child = spawn(process.env.QUIRE, ["serve", "--port", "0", ...options], { stdio: ["ignore", "pipe", "ignore"] });
        process.on("exit", () => child.kill("SIGKILL"));
        ended = new Promise((resolve) => child.on("exit", resolve));
        const lines = createInterface({ input: child.stdout });
        const line = await Promise.race([new Promise((resolve) => lines.once("line", resolve)), ended]);
        assert.match(String(line), /^listening on http/);
        server.address = line.replace("listening on ", "").trim();
        await until(async () => (await fetch(`${server.address}/ready`)).ok);
    });
    after(async () => {
        try {
            await idle(server.address);
        } finally {
            const hang = setTimeout(() => child.kill("SIGKILL"), 30_000);
            child.kill("SIGTERM");
            assert.equal(await ended, 0, "the server exits cleanly when it is told to stop");
            clearTimeout(hang);
        }
    });
    return server;
}

/** Polls until `happened` returns true. */
export async function until(happened) {
    const deadline = Date.now() + PATIENCE;
    while (!(await happened())) assert(Date.now() < deadline, "the expected event does not happen");
}

export async function metric(address, name) {
    const text = await (await fetch(`${address}/metrics`)).text();
    return Number(text.split("\n").find((line) => line.startsWith(`${name}{`)).split("} ")[1]);
}

/** Waits until no request runs or waits and no block is used, in the metrics and in the engine's state. */
export async function idle(address) {
    for (const name of ["vllm:num_requests_running", "vllm:num_requests_waiting", "quire:kv_blocks_used", "quire:http_requests"]) {
        await until(async () => (await metric(address, name)) === 0);
    }
    const state = await (await fetch(`${address}/debug/state`)).json();
    assert.deepEqual([state.running, state.waiting], [[], []]);
    assert(state.refs.every(([count]) => count === 0));
}

/** Checks that `act` makes the server abort one request, which leaves no blocks in use. */
export async function aborts(address, act) {
    const aborted = () => metric(address, "quire:requests_aborted_total");
    const before = await aborted();
    await act();
    await until(async () => (await aborted()) > before);
    assert.equal(await aborted(), before + 1);
    await idle(address);
}

/**
 * Returns the bundled model's continuation of a conversation with these texts. The last text is a user's, and before it
 * assistant and user take turns. The model's template puts each text on a line of its own, except that an assistant's text
 * follows the user's directly.
 */
export async function continued(address, texts, options) {
    const prompt = texts.reduce((before, text, at) => before + ((texts.length - at) % 2 === 1 ? "\n" : "") + text);
    const body = JSON.stringify({ prompt, ...options });
    const headers = { "content-type": "application/json" };
    const answer = await (await fetch(`${address}/v1/completions`, { method: "POST", headers, body })).json();
    assert(answer.choices[0].text);
    return answer.choices[0].text;
}
