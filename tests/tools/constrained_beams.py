"""Writes fixtures/opt-story-3m/constrained_beams.json: beam searches of the bundled model whose outputs must match a regular
expression. The constraint uses transformers' `prefix_allowed_tokens_fn`.

    pip install torch transformers
    python tests/tools/constrained_beams.py

Wherever an expression matches, the output may end or continue. Outputs therefore end with the end-of-sequence token or at the
length limit.
"""

import json
import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures/opt-story-3m"
WIDTH, MAX_TOKENS, EOS = 4, 20, 2
# An expression, and an expression for all prefixes of its matches.
EXPRESSIONS = [
    (r"[ a-z]+", r"[ a-z]*"),
    (r" ?[a-z]{1,4}( [a-z]{1,4})*", r" ?([a-z]{1,4}( [a-z]{1,4})*( )?)?"),
]


def main():
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "engine/model")
    model = AutoModelForCausalLM.from_pretrained(ROOT / "engine/model", dtype=torch.float32).eval()
    texts = [tokenizer.decode([token]) for token in range(model.config.vocab_size)]
    cases = []
    for case in json.loads((FIXTURES / "golden.json").read_text())["cases"][:4]:
        prompt = case["prompt_ids"]
        for expression, beginning in EXPRESSIONS:

            def allowed(_, ids):
                said = tokenizer.decode(ids[len(prompt) :])
                more = [token for token in range(4, len(texts)) if re.fullmatch(beginning, said + texts[token])]
                return more + [EOS] * bool(re.fullmatch(expression, said))

            found = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                prefix_allowed_tokens_fn=allowed,
                num_beams=WIDTH,
                num_return_sequences=WIDTH,
                max_new_tokens=MAX_TOKENS,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
            )
            beams = []
            for ids, score in zip(found.sequences, found.sequences_scores):
                ids = ids[len(prompt) :].tolist()
                # Shorter beams are padded after their end.
                if EOS in ids:
                    ids = ids[: ids.index(EOS) + 1]
                beams.append({"ids": ids, "score": score.item()})
            cases.append({"prompt_ids": prompt, "regex": expression, "beams": beams})
    (FIXTURES / "constrained_beams.json").write_text(json.dumps({"cases": cases}, indent=1) + "\n")


main()
