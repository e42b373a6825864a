"""What the recording scripts share: the trace, the fleet's clock and router, the file, and its shape.

A script gives `record` a function that makes engines. An engine has

    add(number, tokens, decode)   a request arrives; decode is how many tokens it makes at most
    step()                        one step of the scheduler; returns its events as ("S", hashes, parent, tokens, medium)
                                  and ("R", hashes, medium) in the order of the engine. medium is None on the device.
                                  Before medium, events of models with several groups have (group, kind, window) or (group,).
    load()                        how many requests it has

The file is described at the top of streams.go. Hashes and blocks are numbered by first appearance.
"""

import argparse
import array
import collections
import json
import random
import time

import msgspec

BLOCK = 16  # tokens
SEGMENT = 512  # tokens of a hash id of Mooncake's traces
VOCABULARY = 100_000


def arguments(description):
    """arguments returns a parser with what all scripts take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("trace", help="a trace in the format of Mooncake's, one JSON object a line")
    parser.add_argument("out", help="the recording; compress it with zstd -19")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=32768, help="device blocks of an engine")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--running", type=int, default=32, help="requests that an engine runs at once")
    parser.add_argument("--budget", type=int, default=2048, help="tokens of one step")
    parser.add_argument("--decode", type=int, default=200, help="tokens a request makes at most")
    parser.add_argument("--steps", type=float, default=40, help="steps of an engine in a second of the trace")
    parser.add_argument("--rate", type=float, default=2, help="how many times faster than in the trace requests arrive")
    return parser


class File:
    """File numbers what it writes, and counts."""

    def __init__(self, path):
        self.out = open(path, "wb")
        self.pack = msgspec.msgpack.Encoder().encode
        self.hashes, self.blocks = {}, {}
        self.shape = collections.Counter()
        self.sizes = collections.Counter()
        self.parents = {}

    def number(self, table, key):
        return table.setdefault(key, len(table) + 1)

    def locals(self, tokens):
        """locals returns the numbers of the whole blocks of a list of tokens."""
        data = array.array("I", tokens).tobytes()
        return [
            self.number(self.blocks, data[at : at + 4 * BLOCK]) for at in range(0, len(data) - 4 * BLOCK + 1, 4 * BLOCK)
        ]

    def prompt(self, tokens):
        self.out.write(self.pack([-1, self.locals(tokens)]))
        self.shape["prompts"] += 1

    def batch(self, engine, events):
        """batch writes what an engine published in one step."""
        if events:
            self.out.write(self.pack([engine, [self.event(*e) for e in events]]))
            self.shape["batches"] += 1

    def event(self, kind, hashes, *rest):
        hashes = [self.number(self.hashes, h) for h in hashes]
        medium, group = rest[-1], rest[-2] if len(rest) > 1 and isinstance(rest[-2], tuple) else ()
        where = " (%s)" % medium if medium else ""
        where += " of group %d" % group[0] if group else ""
        end = [medium or "", *group] if group else [medium] if medium else []
        if kind == "R":
            self.shape["removed events" + where] += 1
            self.shape["removed blocks" + where] += len(hashes)
            self.last = None
            return ["R", hashes, *end]
        parent, tokens = rest[0], rest[1]
        if parent is not None:
            parent = self.number(self.hashes, parent)
        self.shape["stored events" + where] += 1
        self.shape["stored blocks" + where] += len(hashes)
        self.sizes[len(hashes)] += 1
        return ["S", hashes, parent, self.locals(tokens), *end]

    def close(self):
        self.out.close()
        total = sum(self.sizes.values())
        print(", ".join("%d %s" % (n, what) for what, n in sorted(self.shape.items())))
        common = sorted(self.sizes.items(), key=lambda x: -x[1])[:8]
        print("blocks of a stored event: " + ", ".join("%d: %.1f %%" % (k, 100 * n / total) for k, n in common))


class Router:
    """Router sends a conversation where it was before, unless that engine has much more to do than another.

    The first segment is the same in most conversations of a trace, so it says nothing.
    """

    PATIENCE = 8  # requests

    def __init__(self, engines):
        self.engines, self.home = engines, {}

    def choose(self, ids):
        loads = [e.load() for e in self.engines]
        best = min(range(len(loads)), key=loads.__getitem__)
        known = next((self.home[i] for i in reversed(ids[1:]) if i in self.home), best)
        if loads[known] <= loads[best] + self.PATIENCE:
            best = known
        for i in ids[1:]:
            self.home[i] = best
        return best


class Prompts:
    """Prompts makes tokens of the hash ids of a trace."""

    def __init__(self):
        self.segments = {}

    def tokens(self, ids, length):
        out = []
        for i in ids:
            if i not in self.segments:
                r = random.Random(i)
                self.segments[i] = [r.randrange(VOCABULARY) for _ in range(SEGMENT)]
            out += self.segments[i]
        return out[:length]


def record(args, engine):
    """record plays the trace. engine makes the engine with a number."""
    random.seed(1)
    begun = time.time()
    engines = [engine(i) for i in range(args.engines)]
    router, prompts, file = Router(engines), Prompts(), File(args.out)
    now = 0.0

    def step():
        for i, e in enumerate(engines):
            if e.load():
                file.batch(i, e.step())

    with open(args.trace) as trace:
        for n, line in enumerate(trace):
            if n == args.requests:
                break
            request = json.loads(line)
            at = request["timestamp"] / 1000 / args.rate
            while now < at:
                if any(e.load() for e in engines):
                    step()
                    now += 1 / args.steps
                else:
                    now = at
            # A prompt leaves room for what the request decodes.
            length = min(request["input_length"], args.blocks * BLOCK // 2)
            tokens = prompts.tokens(request["hash_ids"], length)
            file.prompt(tokens)
            engines[router.choose(request["hash_ids"])].add(n, tokens, min(request["output_length"], args.decode))
    while any(e.load() for e in engines):
        step()
    print("%d engines, %.0f s" % (args.engines, time.time() - begun))
    file.close()
