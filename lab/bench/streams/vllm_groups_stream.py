"""Records the events of vLLM's own KV-cache manager for a model with full attention and a sliding window.

usage: vllm_groups_stream.py TRACE OUT --vllm UNPACKED [--window TOKENS] [--dense]

UNPACKED is a release whose modules lab/engines/testdata/fetch.py unpacked ("make engines" does). Its manager decides
hits, what each group keeps, eviction and events. This file plays the scheduler: it starts requests in their order,
prefills in chunks of a common budget, decodes a token a step, and preempts the youngest request when there is no room.
"""

import collections
import os
import random
import sys

import recording

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engines/testdata"))
import standins  # noqa: E402


class Engine:
    def __init__(self, args, cache, prompt):
        self.args, self.cache, self.prompt = args, cache, prompt
        self.running, self.waiting = [], collections.deque()

    def add(self, number, tokens, decode):
        request = self.cache.request(self.prompt(tokens))
        request.request_id, request.end = str(number), len(tokens) + max(1, decode)
        self.waiting.append(request)

    def load(self):
        return len(self.running) + len(self.waiting)

    def step(self):
        budget, preempted = self.args.budget, False
        self.cache.manager.new_step_starts()
        for request in list(self.running):
            count = min(budget, request.num_tokens - request.num_computed_tokens)
            if count <= 0 or request not in self.running:
                continue
            while not self.allocate(request, count, 0, None):
                last = self.running[-1]
                self.preempt(last)
                preempted = True
                if last is request:
                    break
            else:
                budget -= count
        while self.waiting and budget and not preempted and len(self.running) < self.args.running:
            request = self.waiting[0]
            hits, computed, request.shared_prefix_boundary = self.cache.hit(request)
            count = min(budget, request.num_tokens - computed)
            if not self.allocate(request, count, computed, hits):
                break
            self.running.append(self.waiting.popleft())
            budget -= count
        for request in list(self.running):
            if request.num_computed_tokens < request.num_tokens:
                continue
            request.all_token_ids.append(random.randrange(recording.VOCABULARY))
            self.cache.hash(request)
            if request.num_tokens >= request.end:
                self.running.remove(request)
                self.cache.manager.free(request)
        return [self.described(e) for e in self.cache.manager.take_events()]

    def allocate(self, request, count, computed, hits):
        if self.cache.manager.allocate_slots(request, count, computed, hits) is None:
            return False
        request.num_computed_tokens += computed + count
        return True

    def preempt(self, request):
        self.running.remove(request)
        self.cache.manager.free(request)
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)

    def described(self, event):
        medium = None if event.medium == "GPU" else event.medium
        if isinstance(event, self.cache.events.BlockRemoved):
            return "R", event.block_hashes, (event.group_idx,), medium
        group = (event.group_idx, event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window or 0)
        return "S", event.block_hashes, event.parent_block_hash, list(event.token_ids), group, medium


def main():
    parser = recording.arguments("Record the events of vLLM's KV-cache manager for two groups of layers.")
    parser.add_argument("--vllm", required=True, help="a release that fetch.py unpacked")
    parser.add_argument("--window", type=int, default=1024, help="tokens of the sliding window")
    parser.add_argument("--dense", action="store_true", help="keep all windows, not only those at the ends of prompts")
    args = parser.parse_args()
    standins.install(args.vllm)
    os.environ["PYTHONHASHSEED"] = "0"  # the same hashes in every run
    import vllm_groups
    import workload

    def engine(_):
        options = {
            "version": os.path.basename(os.path.normpath(args.vllm)).removeprefix("vllm-"), "seed": 0, "blocks": args.blocks,
            "retention": None if args.dense else 0,
            "groups": [
                {"kind": "full", "block": recording.BLOCK},
                {"kind": "window", "block": recording.BLOCK, "reach": args.window},
            ],
        }  # fmt: skip
        return Engine(args, vllm_groups.Cache(options, workload.Workload(0)), workload.Prompt)

    recording.record(args, engine)


if __name__ == "__main__":
    main()
