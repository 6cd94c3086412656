"""Small models with random weights and the chat templates of popular models."""

import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

FAMILIES = ["llama3", "qwen3", "mistral"]
POSITIONS = 8192


@contextmanager
def model_with_room(golden, templates, family):
    """Yields the directory of a golden model with a longer context and the chat template of its family."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / family
        shutil.copytree(Path(golden) / family, model, ignore=shutil.ignore_patterns("golden.*"))
        config = json.loads((model / "config.json").read_text())
        config["max_position_embeddings"] = POSITIONS
        (model / "config.json").write_text(json.dumps(config))
        tokenizer = json.loads((model / "tokenizer_config.json").read_text())
        tokenizer["chat_template"] = (Path(templates) / f"{family}.jinja").read_text()
        tokenizer["model_max_length"] = POSITIONS
        (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        yield str(model)
