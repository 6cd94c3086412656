#!/usr/bin/env python3
"""Compares the decode speed of quire and Hugging Face generate on one GPU with the same weights, one after the other. Also
reports quire's floors, from the program `lab` in the same folder, and how long quire takes to load and to start.

    python benchmarks/scripts/generate.py target/release/quire /data/opt-13b opt-13b.json [--batches 1,32,128] [--gpu h200] [--only quire]

Prompts have 512 random tokens. Outputs are greedy, with end-of-sequence ignored. A decode step's time is the difference between
generating 160 and 32 tokens, divided by the 128 steps in between. It therefore excludes prompts and start-up. Each of the two times is
the best of the repeats. Hugging Face uses a static cache and is compiled if that works, and the result says whether it did. Needs torch
and transformers, unless --only quire.
"""
import argparse, glob, json, os, random, re, subprocess, tempfile, time

PROMPT, SHORT, LONG = 512, 32, 160


def prompts(batch, vocab):
    r = random.Random(batch)
    return [[r.randrange(10, vocab - 10) for _ in range(PROMPT)] for _ in range(batch)]


def read(pattern, text):
    found = re.search(pattern, text, re.M)
    if not found:
        raise SystemExit(f"error: quire's report has no {pattern!r}:\n{text}")
    return float(found[1])


class Quire:
    def __init__(self, binary, model, device, graphs):
        self.binary, self.command = binary, [
            binary, "--model", model, "--device", device, "--cuda-graphs", graphs, "--temperature", "0",
            "--ignore-eos", "--json", "--stats", "--verbose"]

    def run(self, ids, tokens):
        """Returns the seconds of generating, of loading, of the whole process, and to the first token."""
        command = self.command + ["--max-tokens", str(tokens)]
        for prompt in ids:
            command += ["--prompt-ids", ",".join(map(str, prompt))]
        start = time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if run.returncode:
            raise SystemExit(f"error: {run.stderr}")
        assert all(len(json.loads(line)["outputs"][0]["token_ids"]) == tokens for line in run.stdout.splitlines())
        return {
            "generating": read(r"^time +([0-9.]+) s", run.stderr),
            "loading": read(r"^loaded in +([0-9.]+) s", run.stderr),
            "all": seconds,
            "time_to_first_token": read(r"^time to first token +([0-9.]+) ms", run.stderr) / 1e3,
        }

    def generating(self, ids, tokens):
        return self.run(ids, tokens)["generating"]

    def floor(self, model, batch, gpu):
        """Returns the milliseconds to read weights, keys and values for a decode step in the middle of the measured range."""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [os.path.join(os.path.dirname(self.binary), "lab"), "floor", "--model", model, "--gpu", gpu, "--batch", str(batch),
                       "--context", str(PROMPT + (SHORT + LONG) // 2), "--json", file.name]
            subprocess.run(command, check=True, capture_output=True)
            return 1e3 * json.load(file)["steps"][0]["stream_seconds"]


class HuggingFace:
    def __init__(self, model):
        import torch, transformers
        transformers.logging.set_verbosity_error()
        self.torch, self.is_compiled = torch, True
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto", device_map="cuda").eval()
        self.config_class = transformers.GenerationConfig

    def generate(self, ids, tokens, cache):
        config = self.config_class(
            do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, eos_token_id=None, pad_token_id=1,
            cache_implementation=cache, disable_compile=not self.is_compiled)
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        with self.torch.no_grad():
            out = self.model.generate(ids, attention_mask=self.torch.ones_like(ids), generation_config=config)
        self.torch.cuda.synchronize()
        assert out.shape[1] == PROMPT + tokens
        return time.perf_counter() - start

    def generating(self, ids, tokens):
        ids = self.torch.tensor(ids, device="cuda")
        if self.is_compiled:
            try:
                self.generate(ids, tokens, "static")  # compiles
                return self.generate(ids, tokens, "static")
            except Exception as error:
                print(f"Hugging Face could not be compiled: {type(error).__name__}: {error}", flush=True)
                self.is_compiled = False
        return self.generate(ids, tokens, "static")


def step_milliseconds(engine, ids, repeats):
    short, long = (min(engine.generating(ids, tokens) for _ in range(repeats)) for tokens in (SHORT, LONG))
    return 1e3 * (long - short) / (LONG - SHORT)


def start_up(quire, model, vocab):
    """Measures loading and start-up with the model in the page cache, which the first run fills."""
    weights = sum(os.path.getsize(file) for file in glob.glob(os.path.join(model, "*.safetensors")))
    one = prompts(1, vocab)
    quire.run(one, 1)
    runs = [quire.run(one, 1) for _ in range(3)]
    best = {what: min(run[what] for run in runs) for what in runs[0]}
    return {"weight_gb": weights / 1e9, "load_seconds": best["loading"], "load_gb_per_second": weights / 1e9 / best["loading"],
            "start_to_end_of_first_token_seconds": best["all"], "time_to_first_token_seconds": best["time_to_first_token"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("quire")
    p.add_argument("model", help="model directory from make_model.py")
    p.add_argument("json", help="output file for the results")
    p.add_argument("--batches", default="1,32,128")
    p.add_argument("--repeats", type=int, default=2)
    p.add_argument("--device", default="cuda", help="device for quire; use cpu with --only quire to try the script")
    p.add_argument("--cuda-graphs", default="on", choices=["on", "off"])
    p.add_argument("--gpu", default="h200", help="GPU for the floors, by its name in lab floor")
    p.add_argument("--only", choices=["quire"])
    a = p.parse_args()
    with open(os.path.join(a.model, "config.json")) as file:
        vocab = json.load(file)["vocab_size"]
    quire = Quire(a.quire, a.model, a.device, a.cuda_graphs)
    found = {"model": a.model, "prompt": PROMPT, "device": a.device, "cuda_graphs": a.cuda_graphs,
             "start": start_up(quire, a.model, vocab),
             "decode": []}
    print(json.dumps(found["start"]), flush=True)
    batches = list(map(int, a.batches.split(",")))
    for batch in batches:
        step, floor = step_milliseconds(quire, prompts(batch, vocab), a.repeats), quire.floor(a.model, batch, a.gpu)
        found["decode"].append({"batch": batch, "quire_ms": step, "floor_ms": floor, "of_floor": step / floor,
                                "quire_tokens_per_second": 1e3 * batch / step})
        print(json.dumps(found["decode"][-1]), flush=True)
    if a.only != "quire":
        # Load this model only after quire has freed the GPU's memory.
        other = HuggingFace(a.model)
        found["hugging_face"] = other.versions
        for batch, line in zip(batches, found["decode"]):
            step = step_milliseconds(other, prompts(batch, vocab), a.repeats)
            line.update(hugging_face_ms=step, hugging_face_tokens_per_second=1e3 * batch / step,
                        hugging_face_is_compiled=other.is_compiled, speedup=step / line["quire_ms"])
            print(json.dumps(line), flush=True)
    with open(a.json, "w") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
