"""A scheduler around vLLM's own cache manager for a model with two groups of layers.

One group has full attention, the other a sliding window. The release's
managers decide what each group keeps; both take blocks from one pool.
"""

import vllm_cache


class Cache(vllm_cache.Cache):
    def __init__(self, options, workload):
        super().__init__(options, workload)
        from vllm.v1 import kv_cache_interface as interface
        from vllm.v1.core import kv_cache_manager, single_type_kv_cache_manager

        single_type_kv_cache_manager.register_all_kvcache_specs(None)
        layer = {"block_size": vllm_cache.BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": None}
        specs = [
            interface.FullAttentionSpec(**layer),
            interface.SlidingWindowSpec(sliding_window=options["window"], **layer),
        ]
        self.full = options["seed"] % 2  # the allocator orders groups as it likes
        if self.full:
            specs.reverse()
        groups = [interface.KVCacheGroupSpec([f"layer-{i}"], spec) for i, spec in enumerate(specs)]
        self.manager = kv_cache_manager.KVCacheManager(
            interface.KVCacheConfig(options["blocks"], [], groups),
            max_model_len=1 << 20,
            scheduler_block_size=vllm_cache.BLOCK,
            hash_block_size=vllm_cache.BLOCK,
            enable_kv_cache_events=True,
        )
        self.pool = self.manager.block_pool
        self.started = 0

    def events_taken(self):
        return self.manager.take_events()

    def resident(self, block_hash):
        return self.pool.get_cached_block(block_hash, [self.full])

    def start(self):
        request = self.request(self.prompt(), self.session())
        self.started += 1
        request.request_id = f"request-{self.started}"
        request.num_prompt_tokens = request.prompt_tokens
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.shared_prefix_boundary, request.skip_reading_prefix_cache, request.status = 0, False, None
        hits, computed, request.shared_prefix_boundary = self.manager.get_computed_blocks(request)
        if self.allocate(request, request.prompt_tokens - computed, computed, hits):
            self.running.append(request)

    def allocate(self, request, left, computed=0, hits=None):
        """allocate computes a part of the tokens that are left. It reports false if there is no room."""
        count = min(left, vllm_cache.BLOCK * self.random.randint(1, 8))
        if self.manager.allocate_slots(request, count, computed, hits) is None:
            return False
        request.num_computed_tokens += computed + count
        return True

    def advance(self, request):
        if request.num_computed_tokens >= request.prompt_tokens:
            if request.num_tokens >= request.prompt_tokens + 80 or self.random.random() < 0.1:
                self.finish(request)
                return
            for _ in range(self.random.randint(1, 12)):
                request.all_token_ids.append(self.random.randrange(1, 120_000))
            self.hash(request)
        while not self.allocate(request, request.num_tokens - request.num_computed_tokens):
            others = [r for r in self.running if r is not request]
            if not others:
                self.finish(request)
                return
            self.finish(self.random.choice(others))

    def free(self, request):
        self.manager.free(request)
