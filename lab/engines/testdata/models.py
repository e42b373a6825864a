"""Write models of random weights for a whole vLLM on the CPU.

usage: models.py FOLDER

Each is a folder with a config.json, which is all that vLLM needs with --load-format dummy and
--skip-tokenizer-init. They have two layers of each kind, and no kind is the majority, so that vLLM makes one
group of blocks for each.
"""

import json
import pathlib
import sys

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 128  # tokens, four blocks

MODELS = {
    # Full attention alone.
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2},
    # Full attention and sliding windows, as in Gemma 3.
    "gemma": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "pad_token_id": 0,
    },
    # Sliding windows alone, as in Mistral 7B v0.1.
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "num_hidden_layers": 2,
        "sliding_window": WINDOW,
    },
    # Full attention and state-space layers (linear attention), as in Qwen3-Next. Its kernel for the CPU wants heads of
    # 128. The state of a layer must not be larger than 32 tokens of an attention layer, or vLLM makes blocks larger.
    "qwen": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
}

if __name__ == "__main__":
    for name, config in MODELS.items():
        folder = pathlib.Path(sys.argv[1], name)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(COMMON | config, indent=2))
