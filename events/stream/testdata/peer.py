#!/usr/bin/env python3
"""A scriptable KV-event publisher on libzmq: PUB for live batches, ROUTER for replay.

Prints "ready PUB_PORT REPLAY_PORT", then obeys one command a line on stdin and
answers each with one line. Like the engines, one thread publishes and serves
replays, a replay streams the whole ring at once, and sockets keep libzmq's
high-water marks unless told otherwise.

  publish N   N batches of one stored block     -> ok LAST_SEQ
  lose N      the same, but nobody gets them live: only the ring has them
  flood N [M] N batches of M (64) stored blocks, as fast as they go -> ok LAST_SEQ;
              block I of batch SEQ has the hash LIFE * 2**40 + 2**32 + SEQ * 64 + I
  burn N      N sequence numbers that nobody ever sees
  remove SEQ  a batch that removes the block of batch SEQ
  clear       a batch that clears everything
  empty       a batch without events
  ignore B    B=1: do not answer replays, B=0: do
  subscriber  wait until somebody subscribes (needs --xpub)
  quit

The block of batch SEQ has the hash LIFE * 2**40 + SEQ + 1.
"""

import argparse
import collections
import os
import sys
import time

import msgpack
import zmq

BLOCK = 4


def parser():
    p = argparse.ArgumentParser()
    p.add_argument("--encoding", default="vllm-map",
                   choices=["vllm-map", "vllm-bytes", "vllm-array", "sglang-map", "sglang-array"])
    p.add_argument("--layout", default="A", choices=["A", "B"])
    p.add_argument("--topic", default="")
    p.add_argument("--ring", type=int, default=10000)
    p.add_argument("--life", type=int, default=1)
    p.add_argument("--first-seq", type=int, default=0)
    p.add_argument("--rank", type=int, default=0)
    p.add_argument("--connect", default="", help="publish to whoever is bound there, instead of binding")
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--replay-port", type=int, default=0)
    p.add_argument("--tokens", type=int, default=BLOCK, help="tokens of a batch, a multiple of %d" % BLOCK)
    p.add_argument("--hwm", type=int, default=0, help="of the live socket; 0: libzmq's own, 1000")
    p.add_argument("--publisher-id", default="", choices=["", "payload", "frame"],
                   help="where every message carries an id of this process")
    p.add_argument("--replay-hwm", type=int, default=0, help="0: libzmq's own, 1000")
    p.add_argument("--xpub", action="store_true")
    return p


class Events:
    """Events as one publisher family encodes them."""

    def __init__(self, encoding, life):
        self.encoding, self.life = encoding, life

    def hash(self, seq):
        n = self.life * 2**40 + seq + 1
        if self.encoding == "vllm-bytes":
            return b"\xaa" * 24 + n.to_bytes(8, "big")
        if self.encoding.startswith("sglang"):
            return -n  # SGLang reads its digests as signed
        return n

    def stored(self, seq, tokens):
        h, ids = self.hash(seq), [seq % 2**31 + i for i in range(tokens)]
        if self.encoding == "vllm-array":
            return ["BlockStored", [h], None, ids, tokens, None, "GPU", None, None, 0, "full_attention", None]
        if self.encoding == "sglang-array":
            return ["BlockStored", [h], None, ids, tokens, None, "GPU"]
        e = {"type": "BlockStored", "block_hashes": [h], "parent_block_hash": None,
             "token_ids": ids, "block_size": tokens, "lora_id": None, "medium": "GPU"}
        if self.encoding.startswith("vllm"):
            e.update(lora_name=None, extra_keys=[None], group_idx=0, kv_cache_spec_kind="full_attention")
        return e

    def removed(self, seq):
        h = self.hash(seq)
        if self.encoding == "vllm-array":
            return ["BlockRemoved", [h], "GPU", 0]
        if self.encoding == "sglang-array":
            return ["BlockRemoved", [h], "GPU"]
        e = {"type": "BlockRemoved", "block_hashes": [h], "medium": "GPU"}
        if self.encoding.startswith("vllm"):
            e["group_idx"] = 0
        return e

    def cleared(self):
        if self.encoding.endswith("array"):
            return ["AllBlocksCleared"]
        return {"type": "AllBlocksCleared"}


class Publisher:
    END = b"\xff" * 8

    def __init__(self, args):
        self.args = args
        self.events = Events(args.encoding, args.life)
        self.seq = args.first_seq
        self.ring = collections.deque(maxlen=args.ring)
        self.ignore = False
        context = zmq.Context()
        self.pub = context.socket(zmq.XPUB if args.xpub else zmq.PUB)
        if args.hwm:
            self.pub.setsockopt(zmq.SNDHWM, args.hwm)
        self.id = os.urandom(16)
        self.replay = context.socket(zmq.ROUTER)
        if args.replay_hwm:
            self.replay.setsockopt(zmq.SNDHWM, args.replay_hwm)
        if args.connect:
            self.pub.connect(args.connect)
            self.port = 0
        else:
            self.port = self.bind(self.pub, args.port)
        self.replay_port = self.bind(self.replay, args.replay_port)

    @staticmethod
    def bind(socket, port):
        socket.bind("tcp://127.0.0.1:%d" % port)
        return int(socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").rsplit(b":", 1)[1])

    def batch(self, events, live=True):
        batch = [time.time(), events, self.args.rank]
        if self.args.publisher_id == "payload":
            batch.append(self.id)
        payload = msgpack.packb(batch)
        if live:
            self.pub.send_multipart([self.args.topic.encode(), self.number(self.seq), payload])
        self.ring.append((self.seq, payload))
        self.seq += 1

    def number(self, seq):
        return seq.to_bytes(8, "big") + (self.id if self.args.publisher_id == "frame" else b"")

    def serve(self):
        request = self.replay.recv_multipart()
        if self.ignore or len(request) != 3 or request[1] != b"":
            return  # as the engines do
        client, start = request[0], int.from_bytes(request[2], "big")
        topic = [self.args.topic.encode()] if self.args.layout == "B" else []
        for seq, payload in list(self.ring):
            if seq >= start:
                self.replay.send_multipart([client, b""] + topic + [self.number(seq), payload])
        end = [b""] if self.args.layout == "B" else []
        self.replay.send_multipart([client, b""] + end + [self.END, b""])

    def obey(self, line):
        command, *rest = line.split()
        n = int(rest[0]) if rest else 0
        if command == "flood":
            blocks = int(rest[1]) if len(rest) > 1 else 64
            for _ in range(n):
                base = self.args.life * 2**40 + 2**32 + self.seq * 64
                self.batch([{"type": "BlockStored", "block_hashes": [base + i], "parent_block_hash": None,
                             "token_ids": [1, 2, 3, 4], "block_size": 4, "lora_id": None, "medium": "GPU"} for i in range(blocks)])
        elif command in ("publish", "lose"):
            for _ in range(n):
                self.batch([self.events.stored(self.seq, self.args.tokens)], live=command == "publish")
        elif command == "burn":
            self.seq += n
        elif command == "remove":
            self.batch([self.events.removed(n)])
        elif command == "clear":
            self.batch([self.events.cleared()])
        elif command == "empty":
            self.batch([])
        elif command == "ignore":
            self.ignore = n != 0
        elif command == "subscriber":
            while self.pub.recv()[:1] != b"\x01":
                pass
        else:
            sys.exit("no such command: %r" % line)
        print("ok", self.seq - 1, flush=True)

    def run(self):
        print("ready", self.port, self.replay_port, flush=True)
        stdin = sys.stdin.fileno()
        poller = zmq.Poller()
        poller.register(stdin, zmq.POLLIN)
        poller.register(self.replay, zmq.POLLIN)
        pending = b""
        while True:
            ready = dict(poller.poll())
            if self.replay in ready:
                self.serve()
            if stdin in ready:
                data = os.read(stdin, 65536)
                if not data:
                    return
                pending += data
                while b"\n" in pending:
                    line, pending = pending.split(b"\n", 1)
                    if line.strip() == b"quit":
                        return
                    self.obey(line.decode())


if __name__ == "__main__":
    Publisher(parser().parse_args()).run()
