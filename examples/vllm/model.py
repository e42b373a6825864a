"""Makes a model to learn with: two layers of random weights, and a tokenizer trained on the licence of this repository.

It writes config.json, tokenizer.json and tokenizer_config.json into a folder, in about a second, without a network.
What such a model answers is noise, but it caches prompts as any other does.

    python examples/vllm/model.py FOLDER
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"  # a text that stays as it is, so tokens do too
MOST_TOKENS = 4096
BEGIN, END = "<s>", "</s>"
CHAT = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def main(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(
        [str(TEXT)],
        trainers.BpeTrainer(
            vocab_size=MOST_TOKENS,
            special_tokens=[BEGIN, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # so that every text has tokens
            show_progress=False,
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "model_max_length": 4096,
            "chat_template": CHAT,
        },
    )
    write(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "torch_dtype": "bfloat16",
            "bos_token_id": tokenizer.token_to_id(BEGIN),
            "eos_token_id": tokenizer.token_to_id(END),
        },
    )


def write(file: pathlib.Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: model.py FOLDER")
    main(pathlib.Path(sys.argv[1]))
