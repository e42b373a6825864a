"""Instances of LMCache that report to a server, with LMCache's own directory as the truth.

usage: lmcache_feed.py OPTIONS (JSON). Commands and answers are JSON lines on standard
input and output. Event classes, subscriber, HTTP sender, hasher, gate and key
directory are the release's; the storage behind them is simulated.
"""

import json
import logging
import random
import sys

import standins

standins.ROOTS = {"lmcache", "torch", "numba", "confluent_kafka"}
options = json.loads(sys.argv[1])
standins.install(options["unpacked"])
standins.define("lmcache.logging", init_logger=logging.getLogger)

from lmcache.v1.distributed.api import L1BackendType, ObjectKey, Tier  # noqa: E402
from lmcache.v1.distributed.internal_api import L1ObjectMeta  # noqa: E402
from lmcache.v1.mp_coordinator import cache_events  # noqa: E402
from lmcache.v1.mp_coordinator.ingest.event_broadcaster import CacheEventBroadcaster  # noqa: E402
from lmcache.v1.mp_coordinator.ingest.event_gate import EventGate  # noqa: E402
from lmcache.v1.mp_coordinator.persistence.quiesce import QuiesceLock  # noqa: E402
from lmcache.v1.mp_coordinator.views.key_directory import KeyDirectory  # noqa: E402
from lmcache.v1.mp_observability.event import Event, EventType  # noqa: E402
from lmcache.v1.multiprocess.token_hasher import TokenHasher  # noqa: E402

logging.disable(logging.CRITICAL)
MODEL, CHUNK, WORLD, ROOM = "m", 256, 2, 40


class Local(cache_events.CacheEventSink):
    """Local is the release's coordinator in this process."""

    def __init__(self):
        broadcaster = CacheEventBroadcaster()
        self.directory = KeyDirectory()
        broadcaster.register_consumer(self.directory)
        self.gate = EventGate(broadcaster, QuiesceLock())

    def publish(self, batches):
        self.gate.ingest_batches(batches)


class Instance:
    def __init__(self, fleet, name):
        self.fleet, self.name, self.incarnation = fleet, name, 1790000000
        self.start()

    def start(self):
        self.held = {}  # chunk and salt to backend, oldest first
        self.http = cache_events.HttpCacheEventSink(options["url"], timeout=30.0)
        self.events = cache_events.CacheEventSubscriber(
            sink=cache_events.MultiCacheEventSink([self.http, self.fleet.local]),
            instance_id=self.name,
            incarnation=self.incarnation,
            flush_interval=3600.0,
        )
        self.handlers = self.events.get_subscriptions()

    def restart(self):
        self.incarnation += 1
        self.start()

    def tell(self, kind, **metadata):
        self.handlers[kind](Event(event_type=kind, metadata=metadata))

    def serve(self, tokens, salt):
        """serve stores the chunks of a prompt that are not there, as the store path does."""
        r = self.fleet.random
        hashes = self.fleet.hasher.compute_chunk_hashes(tokens)
        missing = [i for i, h in enumerate(hashes) if (h, salt) not in self.held]
        for h in hashes:
            if (h, salt) in self.held:
                self.held[h, salt] = self.held.pop((h, salt))
        if missing:
            self.tell(
                EventType.MP_TOKENS,
                chunk_hashes=[hashes[i] for i in missing],
                token_chunks=[tokens[i * CHUNK : (i + 1) * CHUNK] for i in missing],
                token_offsets=[i * CHUNK for i in missing],
            )
            backend = r.choice([L1BackendType.DRAM, L1BackendType.DEVDAX])
            for rank in r.sample(range(WORLD), WORLD):
                keys = [key(hashes[i], salt, rank) for i in missing]
                self.tell(EventType.L1_WRITE_FINISHED, keys=keys, meta=[L1ObjectMeta(1 << 20, backend)] * len(keys))
                if r.random() < 0.5:
                    self.tell(EventType.L2_KEYS_STORED, keys=keys, sizes=[1] * len(keys), backend="fs", shared=True)
            for i in missing:
                self.held[hashes[i], salt] = backend
        if len(hashes) > len(missing):
            self.tell(EventType.L1_KEYS_ACCESSED, keys=[key(h, salt, 0) for h in hashes])
        while len(self.held) > ROOM:
            (h, s), backend = next(iter(self.held.items()))
            del self.held[h, s]
            keys = [key(h, s, rank) for rank in range(WORLD)]
            self.tell(EventType.L1_KEYS_EVICTED, keys=keys, meta=[L1ObjectMeta(0, backend)] * WORLD)
        if r.random() < 0.3:
            h = r.choice(hashes)
            keys = [key(h, salt, rank) for rank in r.sample(range(WORLD), r.randint(1, WORLD))]
            self.tell(EventType.L2_KEYS_DELETED, keys=keys, backend="fs", shared=True)


def key(chunk, salt, rank):
    return ObjectKey(chunk, MODEL, ObjectKey.ComputeKVRank(WORLD, rank, WORLD, rank), 0, salt)


class Fleet:
    def __init__(self):
        self.random = random.Random(options["seed"])
        self.local, self.hasher = Local(), TokenHasher(CHUNK, "blake3")
        self.instances = [Instance(self, name) for name in options["instances"]]
        self.talks = []

    def prompt(self):
        """prompt continues a conversation, or begins one behind one of three beginnings."""
        r = self.random
        if len(self.talks) < 8 or r.random() < 0.15:
            salt = r.choice(["", "", "tenant-a"])
            start = random.Random(r.randrange(3))
            tokens = [start.randrange(50000) for _ in range(2 * CHUNK)]
            self.talks = self.talks[-30:] + [(tokens, salt)]
        i = r.randrange(len(self.talks))
        tokens, salt = self.talks[i]
        if len(tokens) < 12 * CHUNK:
            tokens = tokens + [r.randrange(50000) for _ in range(r.randrange(2 * CHUNK))]
            self.talks[i] = (tokens, salt)
        return tokens, salt

    def work(self, steps):
        for _ in range(steps):
            instance = self.random.choice(self.instances)
            instance.serve(*self.prompt())
            instance.events.flush()

    def lose(self, number):
        """lose lets one report of an instance fail on its way to the server."""
        instance = self.instances[number]
        url, instance.http._base_url = instance.http._base_url, "http://127.0.0.1:1"
        instance.serve([self.random.randrange(50000) for _ in range(CHUNK)], "")
        instance.events.flush()
        instance.http._base_url = url

    def ask(self, count):
        """ask returns prompts with what the directory says of each chunk: h on the host of the
        instance, d on the shared storage, b on both, - on neither."""
        questions = []
        for _ in range(count):
            tokens, salt = self.prompt()
            held = {i.name: "" for i in self.instances}
            for chunk in self.hasher.compute_chunk_hashes(tokens):
                ranks = self.local.directory.lookup([key(chunk, salt, rank) for rank in range(WORLD)])
                shared = all(any(p.shared and p.tier == Tier.L2 for p in places) for places in ranks)
                for name in held:
                    own = any(
                        all(any(p.instance_id == name and p.tier == Tier.L1 and p.backend == b for p in places) for places in ranks)
                        for b in ("dram", "devdax")
                    )
                    held[name] += "-dhb"[2 * own + shared]
            questions.append({"tokens": tokens, "salt": salt, "held": held})
        return questions


def main():
    fleet = Fleet()
    print("{}", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = {}
        if command["do"] == "work":
            fleet.work(command.get("n", 0))
        elif command["do"] == "restart":
            fleet.instances[command.get("n", 0)].restart()
        elif command["do"] == "lose":
            fleet.lose(command.get("n", 0))
        elif command["do"] == "ask":
            answer["questions"] = fleet.ask(command.get("n", 0))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
