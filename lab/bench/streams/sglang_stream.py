"""Records the events of SGLang's own radix cache.

usage: sglang_stream.py TRACE OUT --sglang UNPACKED

UNPACKED is a release whose modules lab/engines/testdata/fetch.py unpacked ("make engines" does). The tree
decides residency, splits, eviction and events. This file plays the scheduler: it prefills in chunks, decodes
and finishes requests as SGLang's does, which enters each chunk and each finished request into the tree, and
asks the tree for room before it allocates.
"""

import array
import collections
import os
import random
import sys

import recording

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engines/testdata"))
import standins  # noqa: E402


class Allocator:
    """Allocator counts the tokens that the tree gives back."""

    device = "cpu"

    def __init__(self, capacity):
        self.free_tokens = capacity

    def free_segment(self, values, **_):
        self.free_tokens += len(values)


class Running:
    def __init__(self, tokens, decode):
        self.tokens, self.end = tokens, len(tokens) + max(1, decode)
        self.prompt = len(tokens)
        self.computed = 0  # tokens whose KV is there
        self.shared = 0  # of them, owned by the tree
        self.node = None  # the locked end of the shared part


class Engine:
    def __init__(self, args):
        from sglang.srt.mem_cache import base_prefix_cache, cache_init_params, radix_cache

        self.params, self.radix, self.args = base_prefix_cache, radix_cache, args
        self.pool = Allocator(args.blocks * recording.BLOCK)
        self.tree = radix_cache.RadixCache(
            cache_init_params.CacheInitParams(
                disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=self.pool,
                page_size=recording.BLOCK, enable_kv_cache_events=True,
            )  # fmt: skip
        )
        self.tree.update_eviction_metrics = lambda *_: None
        self.tree.kv_events.take()  # the clear of an empty tree
        self.waiting, self.running = collections.deque(), []

    def add(self, _, tokens, decode):
        self.waiting.append(Running(tokens, decode))

    def load(self):
        return len(self.waiting) + len(self.running)

    def allocate(self, tokens):
        """allocate takes whole pages. It reports whether there is room, evicting if there is not."""
        pages = -(-tokens // recording.BLOCK) * recording.BLOCK
        if self.pool.free_tokens < pages:
            self.tree.evict(self.params.EvictParams(num_tokens=pages))
        if self.pool.free_tokens < pages:
            return False
        self.pool.free_tokens -= pages
        return True

    def key(self, tokens):
        return self.radix.RadixKey(array.array("q", tokens)).page_aligned(recording.BLOCK)

    def enter(self, request):
        """enter gives the whole pages computed so far to the tree, and holds them there."""
        key = self.key(request.tokens[: request.computed])
        if not len(key):
            return
        result = self.tree.insert(self.params.InsertParams(key=key, value=standins.Tensor(key.token_ids[: len(key)])))
        self.pool.free_tokens += max(0, result.prefix_len - request.shared)  # another request entered them first
        self.tree.inc_lock_ref(result.last_device_node)
        if request.node is not None:
            self.tree.dec_lock_ref(request.node)
        request.node, request.shared = result.last_device_node, len(key)

    def finish(self, request):
        self.enter(request)
        # The last page, which is not full, is no longer needed.
        if request.computed > request.shared:
            self.pool.free_tokens += recording.BLOCK
        if request.node is not None:
            self.tree.dec_lock_ref(request.node)

    def begin(self, request):
        """begin finds what the tree has of a prompt, but for its last token."""
        result = self.tree.match_prefix(self.params.MatchPrefixParams(key=self.key(request.tokens[:-1])))
        request.computed = request.shared = result.device_prefix_len
        if request.shared:
            request.node = result.last_device_node
            self.tree.inc_lock_ref(request.node)

    def step(self):
        """step prefills if a request waits and there is room, else it decodes, as SGLang does."""
        if not self.prefill():
            self.decode()
        return [described(e) for e in self.tree.kv_events.take()]

    def prefill(self):
        budget, did = self.args.budget, False
        while self.waiting and budget > 0 and len(self.running) < self.args.running:
            request = self.waiting[0]
            if request.node is None:
                self.begin(request)
            chunk = min(request.prompt - request.computed, budget)
            if chunk < request.prompt - request.computed:
                chunk -= chunk % recording.BLOCK  # a chunk ends with a page
                if not chunk:
                    break
            if not self.allocate(chunk):
                break
            request.computed += chunk
            budget -= chunk
            did = True
            self.enter(request)
            if request.computed == request.prompt:
                request.tokens = list(request.tokens)
                self.running.append(self.waiting.popleft())
        return did

    def decode(self):
        for request in list(self.running):
            # The sampled token's KV is computed in the next step.
            request.tokens.append(random.randrange(recording.VOCABULARY))
            if len(request.tokens) >= request.end:
                self.running.remove(request)
                self.finish(request)
                continue
            if request.computed % recording.BLOCK == 0 and not self.allocate(1):
                # No room: the request goes back and computes what it has lost again.
                self.running.remove(request)
                self.finish(request)
                again = Running(request.tokens, request.end - len(request.tokens))
                self.waiting.append(again)
                continue
            request.computed += 1


def described(event):
    medium = None if event.medium == "GPU" else event.medium
    if type(event).__name__ == "BlockStored":
        return "S", event.block_hashes, event.parent_block_hash, event.token_ids, medium
    if type(event).__name__ == "BlockRemoved":
        return "R", event.block_hashes, medium
    raise ValueError(f"{event} has no form in a recording")


def main():
    parser = recording.arguments("Record the events of SGLang's radix cache.")
    parser.add_argument("--sglang", required=True, help="unpacked modules of a release")
    args = parser.parse_args()
    standins.sglang()
    standins.install(args.sglang)
    print("sglang", os.path.basename(args.sglang.rstrip("/")).removeprefix("sglang-"))
    recording.record(args, lambda _: Engine(args))


if __name__ == "__main__":
    main()
