"""vLLM's own host tier of its OffloadingConnector, with chunks of several blocks.

The release's manager decides what is stored and evicted, its tracker makes the events. This file plays the
connector's scheduler: it offers whole chunks of what requests have computed, and transfers take some steps.
"""

import types

import vllm_cache


class Host:
    def __init__(self, cache, chunk, capacity, describes):
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import events
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload.cpu import manager

        self.base, self.cache, self.chunk = base, cache, chunk
        self.manager = manager.CPUOffloadingManager(capacity, enable_events=True)
        self.tracker = events.OffloadingEventsTracker(base.OffloadingKVEventsConfig(True, describes))
        self.group = types.SimpleNamespace(
            group_idx=0, hashes_per_chunk=chunk, tokens_per_chunk=chunk * vllm_cache.BLOCK, tokens_per_block=vllm_cache.BLOCK,
            sliding_window_size_in_chunks=None, kv_event_group_spec=events.OffloadingEventGroupSpec("full_attention", None),
        )  # fmt: skip
        self.transfers = []  # steps to go, keys and their request

    def keys(self, hashes):
        """keys returns the key of each whole chunk of a prompt: the hash of its last block."""
        return [self.base.make_offload_key(h, 0) for h in hashes[self.chunk - 1 :: self.chunk]]

    def step(self):
        """step stores what requests have computed since they were offered last, and returns the tier's events."""
        # One request a step: the tracker forgets chunks that are evicted and stored again before events are taken.
        if self.cache.running and self.cache.random.random() < 0.7:
            self.offer(self.cache.random.choice(self.cache.running))
        running, self.transfers = self.transfers, []
        for left, keys, context in running:
            if left:
                self.transfers.append((left - 1, keys, context))
            else:
                self.manager.complete_store(keys, context)
        return self.take()

    def offer(self, request):
        if not hasattr(request, "context"):
            request.context = self.base.ReqContext(request.request_id)
        keys = self.keys(request.block_hashes[: request.cached])
        self.manager.touch(keys, request.context)
        answer = self.manager.prepare_store(keys, request.context)
        if not answer or not answer.keys_to_store:
            return
        for key in answer.keys_to_store:
            self.tracker.record_store(request, self.group, keys.index(key), key)
        self.transfers.append((self.cache.random.choice(vllm_cache.LAGS), answer.keys_to_store, request.context))

    def take(self):
        return list(self.tracker.take_events(self.manager.take_events()))

    def have(self, hashes):
        """have returns the hashes in chunks that can be loaded for a prompt. One that the prompt has a part of cannot be."""
        context = self.base.ReqContext("question")
        found = set()
        for i, key in enumerate(self.keys(hashes)):
            if self.manager.lookup(key, context) == self.base.LookupResult.HIT:
                found.update(hashes[i * self.chunk : (i + 1) * self.chunk])
        return found

    def clear(self):
        self.transfers.clear()
        self.manager.reset_cache()
        self.tracker.reset()
        self.take()
