"""A scheduler around vLLM's own cache manager, for models with several kinds of layers.

Layers of one kind are a group with blocks of its own. The release's managers decide what each group
keeps, all from one pool, and how much of a prompt the engine takes: what every group has the blocks for.
The option "groups" lists the groups, "retention" is prefix_cache_retention_interval, and "drafter" says
what a drafter (EAGLE, MTP) has of a hit computed again: the last block of every group, or of those with
"drafter" if there are any.
"""

import collections
import math
import types

import standins
import vllm_cache

# The spec of each kind of group, and what says how far back its layers look.
KINDS = {
    "full": ("FullAttentionSpec", None),
    "mla": ("MLAAttentionSpec", None),
    "window": ("SlidingWindowSpec", "sliding_window"),
    "mla window": ("SlidingWindowMLASpec", "sliding_window"),
    "chunked": ("ChunkedLocalAttentionSpec", "attention_chunk_size"),
    "mamba": ("MambaSpec", None),
}


class Cache(vllm_cache.Cache):
    def __init__(self, options, workload):
        drafter, retention = options.get("drafter", False), options.get("retention")
        standins.define("vllm.envs", VLLM_PREFIX_CACHE_RETENTION_INTERVAL=retention)  # before 0.33
        super().__init__(options, workload)
        from vllm.v1 import kv_cache_interface as interface
        from vllm.v1.core import kv_cache_manager, single_type_kv_cache_manager
        from vllm.v1.core.sched import scheduler

        single_type_kv_cache_manager.register_all_kvcache_specs(None)
        self.groups = list(options["groups"])
        turn = options["seed"] % len(self.groups)  # the allocator orders groups as it likes
        self.groups = self.groups[turn:] + self.groups[:turn]
        kinds = [g["kind"] for g in self.groups]
        self.full = next((i for i, kind in enumerate(kinds) if kind in ("full", "mla")), None)
        sizes = [g["block"] for g in self.groups]
        unit = math.lcm(*sizes)
        config = {} if self.version < (0, 33) else {"prefix_cache_retention_interval": retention}
        more = {"num_hash_lookahead_tokens": self.lookahead} if self.lookahead else {}
        described = interface.KVCacheConfig(
            options["blocks"], [], [self.group(interface, i, g) for i, g in enumerate(self.groups)], **config
        )
        self.manager = kv_cache_manager.KVCacheManager(
            described,
            max_model_len=1 << 20,
            scheduler_block_size=unit,
            hash_block_size=self.block,
            use_eagle=drafter,
            enable_kv_cache_events=True,
            **more,
        )
        self.pool, self.unit = self.manager.block_pool, unit
        self.connector = None
        if options.get("offload"):
            import vllm_connector

            chunk = options["offload"]["chunk"]
            self.connector = vllm_connector.Connector(
                self, described, chunk, options["blocks"] * 2 // chunk, options["offload"]["describes"], retention,
                options["seed"] % 2 == 0,
            )  # fmt: skip
        self.ahead = 3 if drafter or self.lookahead else 0  # drafted tokens, which need room
        self.started = 0
        self.preempted = collections.deque()
        # The part of the scheduler that ends chunks where the state of state-space layers is kept.
        self.scheduler = None
        if "mamba" in kinds:
            state = max(g["block"] for g in self.groups if g["kind"] == "mamba")
            partial = getattr(self.manager.coordinator, "enable_partial_hash_hits", False)
            self.scheduler = types.SimpleNamespace(
                block_size=unit, cache_config=types.SimpleNamespace(block_size=state),
                scheduler_config=types.SimpleNamespace(long_prefill_token_threshold=0),
                use_eagle=drafter, use_eagle_block_drop=drafter, hash_block_size=self.block, num_hash_lookahead_tokens=self.lookahead,
                max_num_scheduled_tokens=8192, mamba_has_prefill_checkpoint_blocks=False, mamba_prefill_checkpoint_alignment=None,
                mamba_partial_cache_hit=partial and self.block < unit, mamba_shared_prefix_checkpoint=False,
            )  # fmt: skip
            self.split = scheduler.Scheduler._mamba_block_aligned_split

    @staticmethod
    def group(interface, number, described):
        """group returns a group of one layer."""
        name, reach = KINDS[described["kind"]]
        fields = {"block_size": described["block"]}
        if described["kind"] == "mamba":
            fields |= {"shapes": ((1,),), "dtypes": (None,), "mamba_cache_mode": "align"}
        else:
            fields |= {"num_kv_heads": 1, "head_size": 1, "dtype": None}
        if reach:
            fields[reach] = described["reach"]
        return interface.KVCacheGroupSpec(
            [f"layer-{number}"], getattr(interface, name)(**fields), is_eagle_group=described.get("drafter", False)
        )

    def events_taken(self):
        return self.manager.take_events()

    def request(self, prompt, session=None):
        request = super().request(prompt, session)
        request.num_prompt_tokens, request.status = request.prompt_tokens, None
        request.num_computed_tokens = request.num_in_flight_tokens = request.shared_prefix_boundary = 0
        request.num_output_placeholders, request.skip_reading_prefix_cache = 0, False
        request.session_id = f"session-{self.started}" if self.options.get("full") else session
        request.kv_transfer_params = request.kv_hints = None
        request.finished, request.is_finished = False, lambda: request.finished
        return request

    def step(self):
        if self.running and self.random.random() < 0.03:
            self.finish(self.random.choice(self.running))  # its user has gone
            events = self.take()
        else:
            events = super().step()
        if self.connector:
            events += self.connector.step()
        return events

    def start(self):
        if self.preempted and self.random.random() < 0.5:
            request = self.preempted.popleft()
        else:
            request = self.request(self.prompt(), self.session())
            self.started += 1
            request.request_id = f"request-{self.started}"
            if self.options.get("full") and self.random.random() < 0.6:
                request.kv_cache_report_mode = "full"
        hits, computed, request.shared_prefix_boundary = self.hit(request)
        loaded = 0
        if self.connector:
            tail = computed % self.unit
            loaded = self.connector.lookup(request, computed - tail)
            if loaded is None:  # it waits for a transfer
                self.preempted.append(request)
                return
            if tail and loaded > tail:
                hits, computed = self.manager.truncate_computed_blocks(hits, computed - tail), computed - tail
            elif tail:
                loaded = 0
        if self.allocate(request, request.num_tokens - computed - loaded, computed, hits, loaded):
            self.running.append(request)

    def hit(self, request):
        """hit asks the manager what it has of a request's tokens. It changes nothing."""
        blocks, computed, *boundary = self.manager.get_computed_blocks(request)
        return blocks, computed, boundary[0] if boundary else 0

    def allocate(self, request, left, computed=0, hits=None, loaded=0):
        """allocate computes a part of the tokens that are left, behind those loaded. It reports false if there is no room."""
        count = min(left, vllm_cache.BLOCK * self.random.randint(1, 8))
        self.manager.new_step_starts()
        if self.scheduler:
            # The part may be less than what a state needs to be kept; a whole state always is.
            for tokens in (count, min(left, self.scheduler.cache_config.block_size), left):
                count = self.split(self.scheduler, request, tokens, computed, *([loaded] if loaded else []))
                if count:
                    break
        more = {"num_external_computed_tokens": loaded} if loaded else {}
        if self.manager.allocate_slots(request, count, computed, hits, num_lookahead_tokens=self.ahead, **more) is None:
            return False
        if loaded:
            self.connector.load(request, self.manager.get_blocks(request.request_id), loaded)
        request.num_computed_tokens += computed + loaded + count
        if self.connector:
            self.connector.offer(request)
        if hasattr(self.manager, "take_kv_cache_block_copies"):
            self.pool.free_blocks(self.manager.take_kv_cache_block_copies()[1])
        return True

    def advance(self, request):
        decoding = request.num_computed_tokens >= request.num_tokens
        if decoding and (request.num_tokens >= request.prompt_tokens + 80 or self.random.random() < 0.1):
            self.finish(request)
            return
        for _ in range(self.random.randint(1, 12) if decoding else 1):
            if decoding:
                request.all_token_ids.append(self.random.randrange(1, 120_000))
                self.hash(request)
            while not self.allocate(request, request.num_tokens - request.num_computed_tokens):
                others = [r for r in self.running if r is not request]
                if not others:
                    self.finish(request)
                    return
                self.preempt(self.random.choice(others))

    def preempt(self, request):
        """preempt takes the blocks of a request, which starts again later."""
        self.running.remove(request)
        self.free(request)
        request.num_computed_tokens = 0
        self.preempted.append(request)

    def free(self, request):
        self.manager.free(request)

    def finish(self, request):
        if self.connector:
            self.connector.finish(request)
        super().finish(request)

    def clear(self):
        self.preempted.clear()
        events = super().clear()
        if self.connector:
            self.connector.clear()
        return events

    def reload(self):
        self.preempted.clear()
        return super().reload()

    def asked(self, prompt):
        """asked returns a prompt without what a router cannot tell.

        A drafter's groups look at the last block of a prompt too, although its last token is always computed.
        """
        if self.manager.use_eagle and (len(prompt.tokens) + 1) % self.block == 0:
            return type(prompt)(prompt.tokens[:-1], prompt.lora, prompt.salt)
        return prompt

    def taken(self, prompt):
        """taken returns how many tokens of a prompt the engine takes. Its own has one token more, which it computes in any case."""
        more = [] if self.lookahead else [1]  # that token is a part of hashes that look ahead
        return self.hit(self.request(type(prompt)(prompt.tokens + more, prompt.lora, prompt.salt)))[1]

    def reached(self, prompt):
        """reached returns how many tokens of a prompt the engine takes with what it loads from the host, None without a connector."""
        if not self.connector:
            return None
        request = self.request(type(prompt)(prompt.tokens + [1], prompt.lora, prompt.salt))
        computed = self.hit(request)[1]
        tail = computed % self.unit
        loaded = self.connector.loadable(request, computed - tail)
        return computed - tail + loaded if loaded > tail else computed

    def held(self, prompt):
        """held returns for each group a letter for each hash of a prompt, as truth does; a larger block has that of its last hash,
        and so has a chunk on the host. D is on both."""
        hashes = self.request(prompt).block_hashes

        def letter(h, group):
            below = self.connector and self.connector.has(h, group)
            return ("D" if below else "d") if self.pool.get_cached_block(h, [group]) else "h" if below else "-"

        return " ".join(
            f"{i} {group['kind']}: " + "".join(letter(h, i) for h in hashes) for i, group in enumerate(self.groups)
        )
