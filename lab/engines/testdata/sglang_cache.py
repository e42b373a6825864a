"""A scheduler around SGLang's own prefix cache and event classes.

The release's tree decides residency, eviction, splits and device events: from
0.5.23 on its default, UnifiedRadixCache, with the tree in Python, because the
one in Rust needs torch; before, and with the option radix, RadixCache. The
host tier is simulated: it repeats the device's stores with its own medium, as
HiCache does.
"""

import array
import collections
import hashlib
import time

import standins

PAGE = 16
LAGS = (0, 0, 1, 2, 4, 60)  # steps from a device store to that of the host


class Allocator:
    """Allocator forgets the slots that it takes back."""

    device = "cpu"

    def free(self, _):
        pass

    def free_segment(self, *_, **__):
        pass

    free_full_segment = free_swa_segment = set_full_to_swa_mapping = clear_full_to_swa_mapping = free_segment

    @property
    def full_attn_allocator(self):
        return self

    def translate_swa_indices_for_transfer(self, slots):
        return slots


class Named:
    """Named is a request as the table of adapter names reads it."""

    def __init__(self, lora_id):
        self.lora_id = self.extra_key = lora_id


class Cache:
    loaded = "lora_name"  # the field of stored events that has what reload returns

    def __init__(self, options, workload):
        standins.sglang()
        from sglang.srt.disaggregation import kv_events
        from sglang.srt.mem_cache import radix_cache

        self.events, self.radix, self.options, self.workload = kv_events, radix_cache, options, workload
        self.random = workload.random
        self.version = tuple(int(n) for n in options["version"].split("."))
        self.eagle = bool(options.get("eagle"))
        self.unified = self.version >= (0, 5, 23) and not options.get("radix")
        self.window = options.get("window", 0)  # tokens of a sliding window, a whole number of pages
        self.capacity = options.get("blocks", 320) * PAGE
        self.lora_ids = {n: hashlib.md5(n.encode()).hexdigest() for n in options.get("loras", ()) if n}
        pools = {"req_to_token_pool": None, "token_to_kv_pool_allocator": Allocator(), "page_size": PAGE}
        if self.version < (0, 5, 12):
            self.tree = radix_cache.RadixCache(**pools, enable_kv_cache_events=True, is_eagle=self.eagle)
        else:
            from sglang.srt.mem_cache import base_prefix_cache, cache_init_params

            self.params = base_prefix_cache
            pools |= {"disable": False, "is_eagle": self.eagle, "enable_kv_cache_events": True}
            if self.version >= (0, 5, 23):
                pools["dynamo_kv_event_format"] = bool(options.get("namespaced"))
            self.tree = self.unified_tree(pools) if self.unified else radix_cache.RadixCache(
                cache_init_params.CacheInitParams(**pools)
            )
            self.tree.update_eviction_metrics = lambda *_: None
            self.name_adapters()
        self.growing = []
        self.host_capacity = options.get("blocks", 320) * 2 if options.get("host") else 0
        self.host = collections.OrderedDict()  # published hashes
        self.waiting = collections.deque()
        self.kept = 0  # a tree has no second copies
        self.pages = {}  # (namespace, parent's hash, tokens) to the published hash
        self.spaces = {}  # published hash to its namespace

    def unified_tree(self, pools):
        """unified_tree returns the cache that SGLang makes for a model of full attention, or of that and a window."""
        from sglang.srt.mem_cache import cache_init_params, unified_radix_cache
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

        self.windows = ComponentType.SWA
        pools |= {"tree_components": (ComponentType.FULL,), "tree_core_backend": "python"}
        if self.window:
            from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

            pools |= {
                "token_to_kv_pool_allocator": type("Both", (Allocator, SWATokenToKVPoolAllocator), {})(),
                "tree_components": (ComponentType.FULL, ComponentType.SWA),
                "sliding_window_size": self.window,
            }
        return unified_radix_cache.UnifiedRadixCache(cache_init_params.CacheInitParams(**pools))

    def name_adapters(self):
        """name_adapters tells the recorder of adapters. With the option extra_keys they are none: keys of requests, without a name."""
        for name, lora_id in self.lora_ids.items():
            if not self.options.get("extra_keys"):
                self.recorder().lora_names.register(Named(lora_id), name)

    def reload(self):
        """reload loads every adapter again, and returns their names. With the option flush the cache is flushed then."""
        self.lora_ids = {n: hashlib.md5(i.encode()).hexdigest() for n, i in self.lora_ids.items()}
        self.name_adapters()
        if self.options.get("flush"):
            self.growing.clear()
            self.tree.reset()
        return set(self.lora_ids)

    def recorder(self):
        """recorder returns what records the events of 0.5.23."""
        return (self.tree.tree_core if self.unified else self.tree).kv_events

    def batch(self, events):
        return self.events.KVEventBatch(ts=time.time(), events=events)

    def key(self, prompt):
        """key returns the prompt as the tree knows it."""
        extra = self.lora_ids.get(prompt.lora)
        if self.version < (0, 5, 12):
            return self.radix.RadixKey(list(prompt.tokens), extra)
        if self.version < (0, 5, 23):
            return self.radix.RadixKey(list(prompt.tokens), extra, is_bigram=self.eagle)
        return self.radix.RadixKey(
            array.array("q", prompt.tokens), extra, is_bigram=self.eagle, cache_salt=prompt.salt
        )

    def insert(self, prompt, before=0):
        """insert puts a prompt into the tree, of which before tokens were there when the step began."""
        key = self.key(prompt)
        value = standins.Tensor(prompt.tokens)
        if self.version < (0, 5, 12):
            units = len(self.tree.key_convert_fn(key.token_ids)) // PAGE * PAGE
            if units:
                self.tree.insert(key[: units + self.eagle], standins.Tensor(prompt.tokens[: units + self.eagle]))
        elif len(key.page_aligned(PAGE)):
            params = self.params.InsertParams(key=key, value=value)
            if self.options.get("sessions"):
                params.session_id = f"session-{self.random.randrange(20)}"
            if self.window:  # the scheduler frees what no window before the step reaches
                params.set_evicted_seqlen(self.windows, max(0, before - self.window) // PAGE * PAGE)
            self.tree.insert(params)

    def match(self, prompt):
        """match returns what the release's lookup says."""
        if self.version < (0, 5, 12):
            return self.tree.match_prefix(self.key(prompt))
        return self.tree.match_prefix(self.params.MatchPrefixParams(key=self.key(prompt)))

    def step(self):
        """step serves one piece of a request. It returns the step's events."""
        before = 0
        if not self.growing or self.random.random() < 0.4:
            prompt = self.workload.request()
            self.match(prompt)
            done = len(prompt.tokens) if self.workload.apart else self.random.randint(1, len(prompt.tokens))
        else:
            prompt, before = self.growing.pop(self.random.randrange(len(self.growing)))
            done = before
            if done == len(prompt.tokens):
                grown = [self.random.randrange(1, 120_000) for _ in range(self.random.randint(10, 60))]
                prompt = type(prompt)(prompt.tokens + grown, prompt.lora, prompt.salt)
                self.workload.remember(prompt)
            done = min(len(prompt.tokens), done + self.random.randint(1, 200))
        self.insert(type(prompt)(prompt.tokens[:done], prompt.lora, prompt.salt), before)
        if not self.workload.apart and (done < len(prompt.tokens) or self.random.random() < 0.6):
            self.growing.append((prompt, done))
            del self.growing[:-6]
        self.evict()
        events = self.take()
        return events + self.offload(events) if self.host_capacity else events

    def evict(self):
        """evict makes the cache as small as its pools are."""
        over = max(0, self.tree.evictable_size() - self.capacity)
        if self.version < (0, 5, 12):
            self.tree.evict(over)
            return
        params = self.params.EvictParams(num_tokens=over)
        if self.window:
            params.swa_num_tokens = max(0, self.tree.swa_evictable_size() - self.capacity // 2)
        self.tree.evict(params)

    def take(self):
        events = self.recorder().take() if self.version >= (0, 5, 23) else self.tree.take_events()
        if self.host_capacity:
            for event in events:
                self.note(event)
        return events

    def note(self, event):
        """note remembers which hash the tree published for a page, for the truth about the host."""
        if not isinstance(event, self.events.BlockStored):
            return
        for parent, block_hash, tokens in self.split(event):
            own = (getattr(event, "lora_name", None), getattr(event, "cache_salt", None))
            space = self.spaces.get(parent, own)
            self.pages[space, parent, tuple(tokens)] = block_hash
            self.spaces[block_hash] = space

    def split(self, event):
        """split yields parent, hash and tokens of each page of a store."""
        parent = event.parent_block_hash
        for i, block_hash in enumerate(event.block_hashes):
            yield parent, block_hash, event.token_ids[i * event.block_size : (i + 1) * event.block_size]
            parent = block_hash

    def offload(self, device):
        """offload returns the host tier's events of one step."""
        medium, out = self.events.StorageMedium.CPU, []
        for event in device:
            if isinstance(event, self.events.BlockStored) and self.random.random() < 0.7:
                self.waiting.append((self.random.choice(LAGS), event))
        for _ in range(len(self.waiting)):
            delay, event = self.waiting.popleft()
            if delay:
                self.waiting.append((delay - 1, event))
                continue
            named = {n: getattr(event, n) for n in event.__struct_fields__}
            for parent, block_hash, tokens in self.split(event):
                if block_hash not in self.host:
                    page = {"parent_block_hash": parent, "block_hashes": [block_hash], "token_ids": list(tokens)}
                    out.append(self.events.BlockStored(**{**named, **page, "medium": medium}))
                    self.host[block_hash] = True
            gone = [self.host.popitem(last=False)[0] for _ in range(max(0, len(self.host) - self.host_capacity))]
            if gone:
                out.append(self.events.BlockRemoved(block_hashes=gone, medium=medium))
        return out

    def clear(self):
        self.growing.clear()
        self.host.clear()
        self.waiting.clear()
        self.tree.reset()
        return self.take()

    def truth(self, prompt):
        """truth returns a letter for each page of the prompt: d device, h host only, - neither.

        UnifiedRadixCache says it itself. RadixCache does not: its match returns slots.
        """
        units = list(zip(prompt.tokens, prompt.tokens[1:])) if self.eagle else list(prompt.tokens)
        units = units[: len(units) // PAGE * PAGE]
        at = self.match(prompt).device_prefix_len if self.unified else self.walk(prompt, units)
        held, parent = "d" * (at // PAGE), None
        for i in range(len(units) // PAGE):
            parent = self.pages.get(((prompt.lora, prompt.salt), parent, tuple(units[i * PAGE : (i + 1) * PAGE])))
            if i >= at // PAGE:
                held += "h" if parent in self.host else "-"
        return held

    def walk(self, prompt, units):
        """walk returns how many units of a prompt RadixCache has. Its match splits nodes and renews them; walk does neither."""
        extra = self.lora_ids.get(prompt.lora)
        node, at = self.tree.root_node, 0
        while at < len(units):
            for child in node.children.values():
                key = child.key
                same = 0
                if key.extra_key == extra and getattr(key, "cache_salt", None) == prompt.salt:
                    for ours, theirs in zip(units[at:], key):
                        if ours != theirs:
                            break
                        same += 1
                if same >= PAGE:
                    break
            else:
                break
            at += same // PAGE * PAGE
            if same < len(child.key):
                break
            node = child
        return at
