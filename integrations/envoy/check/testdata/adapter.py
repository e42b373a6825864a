"""Makes a LoRA adapter of random weights for a model that examples/vllm/model.py has made.

    python adapter.py MODEL FOLDER
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

RANK = 8


def main(model: pathlib.Path, folder: pathlib.Path) -> None:
    config = json.loads((model / "config.json").read_text())
    size = config["hidden_size"]
    torch.manual_seed(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, size) / size
        weights[f"{name}.lora_B.weight"] = torch.randn(size, RANK) / RANK
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"]})
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: adapter.py MODEL FOLDER")
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
