"""A scheduler around vLLM's own block pool, hasher and event classes.

The release's pool decides residency, eviction and events. This file plays the
scheduler: it starts requests, prefills in chunks, decodes and finishes them.
"""

import collections
import struct
import time

import standins

BLOCK = 16
LAGS = (0, 0, 1, 2, 4, 60)  # steps from a device store to that of the host


class Lora:
    """Lora has an adapter's names as all versions call them."""

    def __init__(self, number, name):
        self.id = self.lora_int_id = self.adapter_id = number
        self.name = self.lora_name = name
        self.lora_path = f"adapters/{name}/{number}"


class Request:
    """Request has what hashers and pools of all versions read."""

    mm_positions, mm_hashes, mm_features = (), (), ()

    def __init__(self, prompt, lora=None, session=None):
        self.all_token_ids = list(prompt.tokens)
        self.prompt_tokens = len(prompt.tokens)
        self.lora_request, self.cache_salt, self.session_id = lora, prompt.salt, session
        self.prompt = prompt
        self.prompt_embeds = Embeds(prompt.embeds) if prompt.embeds else None
        self._prompt_embeds_per_block_hashes = {}
        self.request_id = "request"
        self.block_hashes, self.blocks = [], []
        self.late = []  # ranges of blocks that came by transfer and are not announced yet
        self.computed = self.cached = 0

    @property
    def num_tokens(self):
        return len(self.all_token_ids)


class Embeds:
    """Embeds is a tensor with a row for each token of a prompt; a row has one number."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, tokens):
        return Embeds(self.rows[tokens])

    def __bytes__(self):
        return struct.pack(f"<{len(self.rows)}q", *self.rows)


class Host:
    """Host is an offloading tier: it stores blocks some steps after the device and evicts the oldest."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.held = collections.OrderedDict()
        self.waiting = collections.deque()


class Cache:
    loaded = "lora_id"  # the field of stored events that has what reload returns

    def __init__(self, options, workload):
        standins.vllm(integer_hashes=not options.get("bytes"))
        from vllm.distributed import kv_events
        from vllm.v1.core import block_pool, kv_cache_utils

        self.events, self.utils, self.options, self.workload = kv_events, kv_cache_utils, options, workload
        self.random = workload.random
        self.version = tuple(int(n) for n in options["version"].split("."))
        self.lookahead = options.get("lookahead", 0)
        self.block = options.get("block", BLOCK)  # tokens that a hash stands for
        self.loras = {name: Lora(i + 1, name) for i, name in enumerate(n for n in options.get("loras", ()) if n)}
        blocks = options.get("blocks", 320)
        named = {"num_gpu_blocks": blocks, "enable_caching": True, "enable_kv_cache_events": True}
        if self.version >= (0, 20):
            named["hash_block_size"] = self.block
        if self.lookahead:
            named["num_hash_lookahead_tokens"] = self.lookahead
        self.pool = block_pool.BlockPool(**named)
        self.full = 0  # the group of layers with full attention
        self.hasher = None
        if self.version >= (0, 11):
            from vllm.utils.hashing import sha256

            kv_cache_utils.init_none_hash(sha256)
            more = (self.lookahead,) if self.lookahead else ()
            self.hasher = kv_cache_utils.get_request_block_hasher(self.block, sha256, *more)
        self.running = []
        self.received = collections.deque()  # prompts whose KV comes by transfer
        self.sessions = 0
        self.copies, self.kept = collections.Counter(), 0
        self.host = Host(blocks * 2) if options.get("host") else None
        self.digests = {}  # by what the device publishes of them
        if options.get("chunk"):
            import vllm_offload

            self.host = vllm_offload.Host(self, options["chunk"], blocks * 2 // options["chunk"], options["host"] == "self-describing")

    def batch(self, events):
        return self.events.KVEventBatch(ts=time.time(), events=events)

    def hash(self, request):
        """hash extends the request's block hashes to all that its tokens allow."""
        if not self.hasher:
            request.block_hashes = self.utils.hash_request_tokens(hash, BLOCK, request)
            return
        new = self.hasher(request)
        request.block_hashes += new
        if self.host:
            self.digests.update((self.published(h), h) for h in new)

    def request(self, prompt, session=None):
        request = Request(prompt, self.loras.get(prompt.lora), session)
        self.hash(request)
        return request

    def resident(self, block_hash):
        return self.pool.get_cached_block(block_hash, [0])

    def step(self):
        """step advances the scheduler once. It returns the step's events."""
        most = 1 if self.options.get("full") else 4
        if not self.running or len(self.running) < most and self.random.random() < 0.4:
            self.start()
        else:
            self.advance(self.random.choice(self.running))
        events = self.take()
        if self.options.get("chunk"):
            events += self.host.step()
        elif self.host:
            events += self.offload(events)
        return events

    def take(self):
        """take returns the pool's events. It counts removals of a copy that leave another one."""
        events = self.events_taken()
        if self.options.get("sessions"):
            for event in events:
                if getattr(event, "group_idx", None) != self.full:
                    continue
                removed = isinstance(event, self.events.BlockRemoved)
                for h in event.block_hashes:
                    self.copies[h] += -1 if removed else 1
                    self.kept += removed and self.copies[h] > 0
        return events

    def events_taken(self):
        return self.pool.take_events()

    def prompt(self):
        """prompt returns what the next request asks. With sessions two of them often ask the same at one time."""
        if self.options.get("sessions") and self.running and self.random.random() < 0.3:
            return self.random.choice(self.running).prompt
        return self.workload.request()

    def session(self):
        """session returns the session of a request that reports its new blocks only."""
        if self.options.get("sessions") and self.random.random() < 0.8:
            return f"session-{self.random.randrange(20)}"
        return None

    def start(self):
        if self.received:
            self.receive(self.received.popleft())
            return
        full, session = bool(self.options.get("full")) and self.random.random() < 0.6, self.session()
        if full and self.options["full"] == "sessions":
            self.sessions += 1
            session = f"session-{self.sessions}"
        request = self.request(self.prompt(), session)
        hits = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // BLOCK]:
            found = self.resident(block_hash)
            if not found:
                break
            hits += found
        if self.options.get("full") and any(map(self.resident, request.block_hashes[len(hits) :])):
            return  # it would compute a second copy, which looks like a report
        self.pool.touch((hits,) if self.version < (0, 20) else hits)
        request.blocks, request.cached, request.computed = hits, len(hits), len(hits) * BLOCK
        if full:
            self.pool.emit_cached_block_events(request, len(hits), BLOCK, 0)
        self.running.append(request)

    def receive(self, prompt):
        """receive starts a request whose blocks another instance computed and sent.

        They arrive in pieces, the last piece first. A piece is announced when it is there, and a
        request may end before that.
        """
        request = self.request(prompt)
        self.workload.remember(prompt)
        count = len(request.block_hashes)
        if count < 2 or count > self.pool.get_num_free_blocks():
            return
        request.blocks, request.cached, request.computed = self.pool.get_new_blocks(count), count, count * BLOCK
        cuts = sorted(self.random.sample(range(1, count), min(count - 1, self.random.randint(1, 3))))
        request.late = list(zip([0, *cuts], [*cuts, count]))
        last = request.late.pop()
        self.random.shuffle(request.late)
        self.pool.cache_full_blocks(request, request.blocks, *last, BLOCK, 0)
        self.running.append(request)

    def advance(self, request):
        if request.late and self.random.random() < 0.15:
            self.pool.cache_full_blocks(request, request.blocks, *request.late.pop(), BLOCK, 0)
            return
        if request.computed < request.prompt_tokens:
            computed = min(request.prompt_tokens, request.computed + BLOCK * self.random.randint(1, 8))
        elif request.num_tokens < request.prompt_tokens + 80 and self.random.random() < 0.9:
            for _ in range(self.random.randint(1, 12)):
                request.all_token_ids.append(self.random.randrange(1, 120_000))
            computed = request.num_tokens
            self.hash(request)
        else:
            self.finish(request)
            return
        need = -(-computed // BLOCK) - len(request.blocks)
        while need > self.pool.get_num_free_blocks():
            others = [r for r in self.running if r is not request]
            if not others:
                self.finish(request)
                return
            self.finish(self.random.choice(others))
        if need > 0:
            request.blocks += self.pool.get_new_blocks(need)
        request.computed = computed
        full = min(computed // BLOCK, len(request.block_hashes))
        if full > request.cached:
            if self.hasher:
                self.pool.cache_full_blocks(request, request.blocks, request.cached, full, BLOCK, 0)
            else:
                self.pool.cache_full_blocks(
                    request, request.blocks, request.block_hashes, request.cached, full, BLOCK, 0, hash
                )
            request.cached = full

    def finish(self, request):
        self.running.remove(request)
        self.free(request)
        prompt = request.prompt
        self.workload.remember(type(prompt)(request.all_token_ids, prompt.lora, prompt.salt, prompt.embeds))

    def free(self, request):
        self.pool.free_blocks(reversed(request.blocks))

    def offload(self, device):
        """offload returns the host tier's events of one step, which follow the device's."""
        host, kind, out = self.host, self.options["host"], []
        for event in device:
            if isinstance(event, self.events.BlockStored) and self.random.random() < 0.7:
                host.waiting.append((self.random.choice(LAGS), event))
        for _ in range(len(host.waiting)):
            delay, event = host.waiting.popleft()
            if delay:
                host.waiting.append((delay - 1, event))
                continue
            new = [h for h in event.block_hashes if h not in host.held]
            for h in event.block_hashes:
                host.held.pop(h, None)
                host.held[h] = True
            over = 0 if kind == "mooncake" else max(0, len(host.held) - host.capacity)
            gone = [host.held.popitem(last=False)[0] for _ in range(over)]
            if gone:
                out.append(self.events.BlockRemoved(block_hashes=self.named(gone), medium="CPU"))
            if new and kind == "hashes":
                out.append(self.placeholder(new))
            else:
                out += self.described(event, new, kind == "mooncake")
        return out

    def named(self, hashes):
        """named returns hashes as the release's offloading connector publishes them.

        0.11 and 0.20 publish whole digests there and integers for the device.
        """
        return [self.digests[h] for h in hashes] if self.version < (0, 24) else list(hashes)

    def placeholder(self, hashes):
        named = {"lora_name": None} if self.version >= (0, 20) else {}
        return self.events.BlockStored(
            block_hashes=self.named(hashes), parent_block_hash=None, token_ids=[], lora_id=None,
            block_size=0 if self.version >= (0, 20) else BLOCK, medium="CPU", **named,
        )

    def described(self, event, new, mooncake):
        """described announces each new block with tokens, as one chunk of a self-describing connector.

        Mooncake's store connector leaves out adapter and extra keys, and never announces a removal.
        """
        at = {h: i for i, h in enumerate(event.block_hashes)}
        for h in new:
            i = at[h]
            keys = event.extra_keys and [event.extra_keys[i]] if self.version >= (0, 33) else None
            yield self.events.BlockStored(
                block_hashes=[h],
                parent_block_hash=event.block_hashes[i - 1] if i else event.parent_block_hash,
                token_ids=event.token_ids[i * BLOCK : (i + 1) * BLOCK],
                block_size=BLOCK,
                lora_id=None if mooncake else event.lora_id,
                medium="cpu" if mooncake else "CPU",
                lora_name=None if mooncake else event.lora_name,
                extra_keys=None if mooncake else keys,
                group_idx=0,
            )

    def reload(self):
        """reload loads each adapter again under its name, from another path. It returns the adapters' numbers."""
        for request in [r for r in self.running if r.lora_request]:
            self.finish(request)
        highest = max(lora.id for lora in self.loras.values())
        self.loras = {name: Lora(highest + 1 + i, name) for i, name in enumerate(self.loras)}
        return {lora.id for lora in self.loras.values()}

    def idle(self):
        """idle ends all requests and waits for the connector. It returns its events."""
        for request in list(self.running):
            self.finish(request)
        events = self.take()
        while self.options.get("chunk") and self.host.transfers:
            events += self.host.step()
        return events

    def clear(self, lower=True):
        """clear resets the prefix cache, and that of the connector, as an operator does between runs."""
        for request in list(self.running):
            self.finish(request)
        if not lower:
            pass
        elif self.options.get("chunk"):
            self.host.clear()
        elif self.host:
            self.host = Host(self.host.capacity)
        assert self.pool.reset_prefix_cache()
        self.copies.clear()
        return self.take()

    def truth(self, prompt):
        """truth returns a letter for each block that the prompt's hashes name: d device, h host only, - neither."""
        hashes = self.request(prompt).block_hashes
        if self.options.get("chunk"):
            below = self.host.have(hashes)
        else:
            below = {h for h in hashes if self.host and self.published(h) in self.host.held}
        held = "".join("d" if self.resident(h) else "h" if h in below else "-" for h in hashes)
        device, end = len(held) - len(held.lstrip("d")), len(held) - len(held.lstrip("dh"))
        if self.options.get("host") == "self-describing" and end - device < self.options.get("chunk", 1):
            # The connector loads no part of a chunk. Without descriptions Conductor may take one for single blocks.
            return held[:device].ljust(len(held), "-")
        return held

    def embeds(self, prompt):
        """embeds returns the digests that the engine hashes for the prompt's embeddings, one a block."""
        request = self.request(prompt)
        return [
            request._prompt_embeds_per_block_hashes[i * BLOCK, (i + 1) * BLOCK].hex()
            for i in range(len(request.block_hashes))
        ]

    def published(self, block_hash):
        return self.utils.maybe_convert_block_hash(block_hash)
