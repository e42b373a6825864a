"""vLLM's own OffloadingConnector for a model with several kinds of layers, on the side of the scheduler.

The release's connector decides which chunks of which group a request offloads, and how many tokens behind the hit on the
device it can load; its manager evicts, its tracker makes the events. This file plays the worker: transfers take some steps.
"""

import types

import standins
import vllm_cache


class Ready:
    """Ready is a manager in which chunks that are still being stored, of which no event tells, are not there yet."""

    def __init__(self, manager, results):
        self.manager, self.results = manager, results

    def lookup(self, key, context):
        found = self.manager.lookup(key, context)
        return self.results.MISS if found is self.results.HIT_PENDING else found


class Stats:
    """Stats counts nothing."""

    def __getattr__(self, _):
        return lambda *_, **__: None


class Connector:
    def __init__(self, cache, config, chunk, capacity, describes, retention, prompt_only):
        standins.define("vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics", OffloadingConnectorStats=Stats)
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import config as offloading
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import events, scheduler
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload import config as kv_offload
        from vllm.v1.kv_offload.cpu import manager
        from vllm.v1.request import RequestStatus

        self.cache, self.base, self.scheduler = cache, base, scheduler
        self.aborted = RequestStatus.FINISHED_ABORTED
        self.manager = manager.CPUOffloadingManager(capacity, enable_events=True)
        scheduler._group_kv_bytes_per_block = lambda _: 0  # a layer of no tensors
        groups = tuple(
            kv_offload.OffloadingGroupConfig(
                group_id=i,
                tokens_per_block=g.kv_cache_spec.block_size,
                layer_names=tuple(g.layer_names),
                sliding_window_size_in_chunks=offloading.get_sliding_window_size_in_chunks(
                    g.kv_cache_spec, g.kv_cache_spec.block_size * chunk
                ),
            )
            for i, g in enumerate(config.kv_cache_groups)
        )
        kv_events = base.OffloadingKVEventsConfig(True, describes)
        spec = types.SimpleNamespace(
            config=types.SimpleNamespace(groups=groups), blocks_per_chunk=chunk, tokens_per_hash=cache.block,
            tokens_per_block=tuple(g.tokens_per_block for g in groups), offload_prompt_only=prompt_only, extra_config={},
            kv_events_config=kv_events, get_manager=lambda: self.manager,
        )  # fmt: skip
        engine = types.SimpleNamespace(
            cache_config=types.SimpleNamespace(prefix_cache_retention_interval=retention, enable_prefix_caching=True),
            speculative_config=None,
            parallel_config=types.SimpleNamespace(decode_context_parallel_size=1, world_size=1),
        )
        self.connector = scheduler.OffloadingConnectorScheduler(spec, engine, config)
        self.tracker = lambda: events.OffloadingEventsTracker(kv_events)  # one that a question may change
        self.transfers = []  # steps to go and jobs

    def lookup(self, request, computed):
        """lookup returns how many tokens behind those on the device a request can load, None if it has to wait."""
        if request.request_id not in self.connector._req_status:
            self.connector.on_new_request(request)
        found, _ = self.connector.get_num_new_matched_tokens(request, computed)
        self.connector._release_step()
        return found

    def load(self, request, blocks, tokens):
        """load loads tokens into blocks that the request has got for them."""
        self.connector.update_state_after_alloc(request, blocks, tokens)
        self.connector._release_step()
        self.connector._current_batch_allocated_block_ids.clear()
        for number in self.connector._current_batch_load_jobs:
            job = self.connector._jobs.pop(number)
            status = self.connector._req_status[job.req_id]
            self.manager.complete_load(job.keys, status.req_context)
            self.connector._chunks_being_loaded.difference_update(job.keys)
            status.transfer_jobs.discard(number)
        self.connector._current_batch_load_jobs.clear()

    def offer(self, request):
        """offer starts to store what the request has computed."""
        status = self.connector._req_status.get(request.request_id)
        if status is None:
            return
        status.update_offload_keys()
        if not request.finished:
            for group, blocks in zip(status.group_states, self.cache.manager.get_block_ids(request.request_id)):
                group.block_ids[:] = blocks
        step = types.SimpleNamespace(
            num_scheduled_tokens={} if request.finished else {request.request_id: 0},
            finished_req_ids=[request.request_id] if request.finished else [],
        )
        jobs = self.connector._build_store_jobs(step)
        jobs |= self.connector._build_aligned_boundary_store_jobs(self.cache.manager.take_boundary_state_offloads())
        self.transfers += [(self.cache.random.choice(vllm_cache.LAGS), number) for number in jobs]

    def finish(self, request):
        """finish offers the last chunks of a request that ends, before its blocks are freed."""
        self.offer(request)
        request.finished = True
        if request.num_computed_tokens < request.num_tokens:
            request.status = self.aborted
        if request.request_id in self.connector._req_status:
            self.connector.request_finished(request)
            self.offer(request)
            self.forget(self.connector._req_status[request.request_id])

    def forget(self, status):
        """forget ends the state of a request that has finished and has no transfer."""
        if status.req.finished and not status.transfer_jobs:
            self.manager.on_request_finished(status.req_context)
            del self.connector._req_status[status.req.request_id]

    def step(self):
        """step ends the transfers that are due, and returns the tier's events."""
        running, self.transfers = self.transfers, []
        for left, number in running:
            if left:
                self.transfers.append((left - 1, number))
                continue
            job = self.connector._jobs.pop(number)
            status = self.connector._req_status[job.req_id]
            self.manager.complete_store(job.keys, status.req_context)
            status.transfer_jobs.discard(number)
            self.forget(status)
        return list(self.connector.take_events())

    def clear(self):
        self.transfers.clear()
        self.connector._current_batch_jobs_to_flush.clear()
        self.connector.reset_cache()
        self.connector._current_batch_jobs_to_flush.clear()
        list(self.connector.take_events())

    def loadable(self, request, computed):
        """loadable returns how many tokens behind those on the device the connector would load for a question. It changes nothing."""
        asked = object.__new__(type(self.connector))
        asked.__dict__.update(self.connector.__dict__)
        asked._events_tracker, asked.manager = self.tracker(), Ready(self.manager, self.base.LookupResult)
        status = self.scheduler.RequestOffloadState(
            asked.config, request, self.base.ReqContext("question"), self.base.RequestOffloadingContext()
        )
        status.update_offload_keys()
        status.num_locally_computed_tokens = computed
        return asked._lookup(status)

    def has(self, block_hash, group):
        """has reports whether a chunk of a group that ends with a block can be loaded."""
        key = self.base.make_offload_key(block_hash, group)
        return self.manager.lookup(key, self.base.ReqContext("question")) is self.base.LookupResult.HIT
