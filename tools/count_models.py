"""Writes unslothrl/weights/counts.json: the layers of `MODELS`, by transformers.

    python tools/count_models.py

So that `plan` and `recipes` know them at once; after a change to them or `decoder.count`.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from unslothrl.weights import shapes

MODELS = {  # what their config.json say of the text model
    "smollm3-3b": {"model_type": "smollm3", "num_hidden_layers": 36, "hidden_size": 2048,
                   "intermediate_size": 11_008, "num_attention_heads": 16, "num_key_value_heads": 4,
                   "vocab_size": 128_256, "tie_word_embeddings": True,
                   "max_position_embeddings": 65_536},
    "phi-4-mini": {"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072,
                   "intermediate_size": 8192, "num_attention_heads": 24, "num_key_value_heads": 8,
                   "vocab_size": 200_064, "tie_word_embeddings": True, "pad_token_id": 0,
                   "max_position_embeddings": 131_072},
    "phi-4": {"model_type": "phi3", "num_hidden_layers": 40, "hidden_size": 5120,
              "intermediate_size": 17_920, "num_attention_heads": 40, "num_key_value_heads": 10,
              "vocab_size": 100_352, "pad_token_id": 0, "max_position_embeddings": 16_384},
    "gemma-3-4b": {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560,
                   "intermediate_size": 10_240, "vocab_size": 262_208,
                   "sliding_window": 1024},
    "gemma-3-12b": {"model_type": "gemma3_text", "num_hidden_layers": 48, "hidden_size": 3840,
                    "intermediate_size": 15_360, "num_attention_heads": 16,
                    "num_key_value_heads": 8, "vocab_size": 262_208, "sliding_window": 1024},
    "qwen3.5-4b": {"model_type": "qwen3_5_text", "num_hidden_layers": 32, "hidden_size": 2560,
                   "intermediate_size": 9216, "tie_word_embeddings": True},
    "qwen3.5-9b": {"model_type": "qwen3_5_text", "num_hidden_layers": 32, "hidden_size": 4096,
                   "intermediate_size": 12_288},
}  # fmt: skip


def counts() -> dict[str, dict]:
    return {name: shapes.by_transformers(json.dumps(config)) for name, config in MODELS.items()}


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in counts().items()]
    shapes.COUNTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
