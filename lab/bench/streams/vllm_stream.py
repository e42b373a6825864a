"""Records the events of vLLM's own scheduler, KV-cache manager and, with --offload, OffloadingConnector.

usage: vllm_stream.py TRACE OUT [--offload BLOCKS]

It needs an installed vLLM, and no GPU: the model is not loaded. Steps of the scheduler get the tokens of a
model that draws them at random. Transfers to the host take --lag steps, as those of a worker do.
"""

import json
import logging
import os
import random
import tempfile

import recording

logging.disable(logging.WARNING)
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("PYTHONHASHSEED", "0")  # the same hashes in every run

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.config import KVEventsConfig, KVTransferConfig  # noqa: E402
from vllm.distributed.kv_events import BlockRemoved, BlockStored  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": recording.VOCABULARY, "max_position_embeddings": 200_000, "torch_dtype": "float32",
}  # fmt: skip
HASH = get_hash_fn_by_name("sha256")


class Taken:
    """Taken is a publisher that keeps the batch for step."""

    batch = None

    def publish(self, batch):
        self.batch = batch

    def shutdown(self):
        pass


class Engine:
    def __init__(self, args, model):
        spec = FullAttentionSpec(block_size=recording.BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
        offload = {}
        if args.offload:
            # A chunk of the host is rounded up to whole pages of its memory.
            page = -(-spec.page_size_bytes // 4096) * 4096
            extra = {"cpu_bytes_to_use": args.offload * page, "self_describing_kv_events": args.describe}
            offload["kv_transfer_config"] = KVTransferConfig(
                kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
            )
        config = EngineArgs(
            model=model, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, block_size=recording.BLOCK,
            max_num_seqs=args.running, max_num_batched_tokens=args.budget, enable_prefix_caching=True,
            enable_chunked_prefill=True, async_scheduling=False, prefix_caching_hash_algo="sha256",
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"), **offload,
        ).create_engine_config()  # fmt: skip
        config.cache_config.num_gpu_blocks = args.blocks
        config.cache_config.block_size = recording.BLOCK
        cache = KVCacheConfig(
            num_blocks=args.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.scheduler = Scheduler(config, cache, StructuredOutputManager(config), recording.BLOCK)
        self.scheduler.kv_event_publisher = self.taken = Taken()
        self.hasher = kv_cache_utils.get_request_block_hasher(recording.BLOCK, HASH)
        self.lag, self.transfers, self.steps = args.lag, [], 0

    def add(self, number, tokens, decode):
        self.scheduler.add_request(
            Request(
                request_id=str(number), prompt_token_ids=tokens, pooling_params=None, block_hasher=self.hasher,
                sampling_params=SamplingParams(max_tokens=max(1, decode), ignore_eos=True),
            )  # fmt: skip
        )

    def load(self):
        return self.scheduler.get_num_unfinished_requests()

    def step(self):
        self.steps += 1
        plan = self.scheduler.schedule()
        ids = list(plan.num_scheduled_tokens)
        requests = [self.scheduler.requests[i] for i in ids]
        # A request whose prompt is computed up to its end gets a token.
        tokens = [
            [random.randrange(recording.VOCABULARY)] if r.num_computed_tokens >= r.num_tokens else [] for r in requests
        ]
        output = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=tokens
        )
        if plan.kv_connector_metadata is not None:
            output.kv_connector_output = self.transfer(plan.kv_connector_metadata)
        self.taken.batch = None
        self.scheduler.update_from_output(plan, output)
        return [described(e) for e in self.taken.batch.events] if self.taken.batch else []

    def transfer(self, plan):
        """transfer is the worker: it returns the transfers that end in this step."""
        for job, load in [(j, True) for j in plan.load_jobs.items()] + [(j, False) for j in plan.store_jobs.items()]:
            self.transfers.append((self.steps + self.lag, job[0], job[1].req_id if load else None))
        flush = plan.jobs_to_flush or ()
        done = [t for t in self.transfers if t[0] <= self.steps or t[1] in flush]
        self.transfers = [t for t in self.transfers if t not in done]
        meta = OffloadingWorkerMetadata()
        for _, job, _ in done:
            meta.mark_completed(job)
        return KVConnectorOutput(
            finished_recving={request for _, _, request in done if request}, kv_connector_worker_meta=meta
        )


def described(event):
    medium = None if event.medium == "GPU" else event.medium
    if isinstance(event, BlockStored):
        return "S", event.block_hashes, event.parent_block_hash, list(event.token_ids), medium
    if isinstance(event, BlockRemoved):
        return "R", event.block_hashes, medium
    raise ValueError(f"{event} has no form in a recording")


def main():
    parser = recording.arguments("Record the events of vLLM's cache managers.")
    parser.add_argument("--offload", type=int, default=0, help="blocks of an engine's host tier; 0 for none")
    parser.add_argument("--describe", action="store_true", help="with tokens in events of the host tier")
    parser.add_argument("--lag", type=int, default=2, help="steps that a transfer to or from the host takes")
    args = parser.parse_args()
    kv_cache_utils.init_none_hash(HASH)
    with tempfile.TemporaryDirectory() as model:
        with open(os.path.join(model, "config.json"), "w") as file:
            json.dump(MODEL, file)
        print("vllm", vllm.__version__)
        recording.record(args, lambda _: Engine(args, model))


if __name__ == "__main__":
    main()
