#!/usr/bin/env python3
"""A KV-event publisher with snapshots, on libzmq: peer.py, and a ROUTER that gives the
whole cache state away. Commands are those of peer.py, and

  fault KIND N  the next N replies are wrong: "none" (-2), "mute" (no reply), "id" (of
                another publisher), "torn" (a part that is cut), "frames" (a short id),
                "old" (the state and number of ten batches ago) -> ok LAST_SEQ
  idle B        B=1: a batch without events each second, as revision B sends it

Prints "ready PUB_PORT REPLAY_PORT SNAPSHOT_PORT". Revision A has the publisher id in
sequence frames, revision B as the fourth element of batches. Requests are exactly
[identity, "", "snapshot"]; others are ignored.
"""

import copy
import os
import sys
import time

import msgpack
import zmq

import peer


class Recorder(peer.Publisher):
    def __init__(self, args):
        super().__init__(args)
        self.snapshots = zmq.Context.instance().socket(zmq.ROUTER)
        self.snapshots.setsockopt(zmq.SNDHWM, 4)
        self.snapshot_port = self.bind(self.snapshots, args.snapshot_port)
        self.blocks = {}  # hash -> (parent, tokens, copies)
        self.before = []  # states of the last batches
        self.faults = []
        self.idle = False
        self.beat = time.monotonic()

    def batch(self, events, live=True):
        for e in events:
            self.record(e)
        super().batch(events, live)
        self.before = self.before[-10:] + [(self.seq - 1, copy.deepcopy(self.blocks))]
        self.beat = time.monotonic()

    def record(self, e):
        if e["type"] == "AllBlocksCleared":
            self.blocks.clear()
        for i, h in enumerate(e.get("block_hashes", [])):
            if e["type"] == "BlockRemoved":
                if h in self.blocks:
                    self.blocks[h][2] -= 1
                    if self.blocks[h][2] == 0:
                        del self.blocks[h]
                continue
            size = e["block_size"]
            self.blocks.setdefault(h, [e["parent_block_hash"], e["token_ids"][i * size:(i + 1) * size], 0])[2] += 1

    def parts(self, blocks):
        """Steps 1, 3 and 4; the blocks of this publisher have no parents, so none is dead."""
        events = []
        for h, (parent, tokens, _) in blocks.items():
            e = self.events.stored(0, len(tokens))
            e.update(block_hashes=[h], parent_block_hash=parent, token_ids=tokens, block_size=len(tokens))
            events.append(e)
        scope = {"medium": "GPU", "group_idx": 0}
        for h, (_, _, copies) in blocks.items():
            for _ in range(copies):
                events.append(dict(scope, type="BlockStored", block_hashes=[h], parent_block_hash=None,
                                   token_ids=[], block_size=0, lora_id=None, lora_name=None, kv_cache_spec_kind="full_attention"))
        hashes = list(blocks)
        for i in range(0, len(hashes), 1024):
            events.append(dict(scope, type="BlockRemoved", block_hashes=hashes[i:i + 1024]))
        return [msgpack.packb([time.time(), events[i:i + 256], self.args.rank]) for i in range(0, len(events), 256)]

    def answer(self):
        request = self.snapshots.recv_multipart()
        if len(request) != 3 or request[1:] != [b"", b"snapshot"]:
            return
        fault = self.faults.pop(0) if self.faults else ""
        seq, publisher, parts = self.seq - 1, self.id, self.parts(self.blocks)
        if fault == "mute":
            return
        if fault == "none":
            seq, parts = -2, []
        if fault == "id":
            publisher = os.urandom(16)
        if fault == "frames":
            publisher = publisher[:15]
        if fault == "torn":
            parts[-1] = parts[-1][:len(parts[-1]) // 2]
        if fault == "old":
            seq, blocks = self.before[0]
            parts = self.parts(blocks)
        self.snapshots.send_multipart([request[0], b"", seq.to_bytes(8, "big", signed=True), publisher] + parts, zmq.NOBLOCK)

    def obey(self, line):
        command, *rest = line.split()
        if command == "fault":
            self.faults += [rest[0]] * int(rest[1])
        elif command == "idle":
            self.idle = rest[0] != "0"
        else:
            return super().obey(line)
        print("ok", self.seq - 1, flush=True)

    def run(self):
        print("ready", self.port, self.replay_port, self.snapshot_port, flush=True)
        stdin = sys.stdin.fileno()
        poller = zmq.Poller()
        for socket in (stdin, self.replay, self.snapshots):
            poller.register(socket, zmq.POLLIN)
        pending = b""
        while True:
            ready = dict(poller.poll(100))
            if self.replay in ready:
                self.serve()
            if self.snapshots in ready:
                self.answer()
            if self.idle and time.monotonic() - self.beat >= 1:
                self.batch([])
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
    parser = peer.parser()
    parser.add_argument("--snapshot-port", type=int, default=0)
    Recorder(parser.parse_args()).run()
