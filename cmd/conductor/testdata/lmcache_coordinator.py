"""LMCache's coordinator as a publisher, by its layout: one sequence over all topics.

usage: lmcache_coordinator.py. It prints the ports of live and replay sockets. Each line of
standard input is a JSON list of a topic and events; hashes are hexadecimal digits. A third
element true keeps the batch off the live socket. The answer is the sequence number.
"""

import json
import struct
import sys
import threading

import msgpack
import zmq

context = zmq.Context()
live = context.socket(zmq.XPUB)
live.setsockopt(zmq.XPUB_VERBOSE, 1)
live.setsockopt(zmq.SNDHWM, 100_000)
port = live.bind_to_random_port("tcp://127.0.0.1")
router = context.socket(zmq.ROUTER)
replay_port = router.bind_to_random_port("tcp://127.0.0.1")
ring = []


def serve():
    while True:
        client, empty, start = router.recv_multipart()
        for seq, topic, payload in list(ring):
            if seq >= struct.unpack(">Q", start)[0]:
                router.send_multipart([client, b"", topic, struct.pack(">Q", seq), payload])
        router.send_multipart([client, b"", b"", struct.pack(">q", -1), b""])


def packed(event):
    if event[0] == "BlockStored":
        tag, hash_, parent, tokens, medium = event
        return [tag, [bytes.fromhex(hash_)], parent and bytes.fromhex(parent), tokens, len(tokens), None, medium]
    if event[0] == "BlockRemoved":
        return [event[0], [bytes.fromhex(h) for h in event[1]], event[2]]
    return event


threading.Thread(target=serve, daemon=True).start()
print(json.dumps([port, replay_port]), flush=True)
subscribed = 0
for seq, line in enumerate(sys.stdin):
    topic, events, *lost = json.loads(line)
    payload = msgpack.packb([1700000000.5 + seq, [packed(e) for e in events], None])
    ring.append((seq, topic.encode(), payload))
    if not lost:
        while not subscribed or live.poll(0):  # the first batch waits for a subscriber
            subscribed += live.recv() == b"\x01"
        live.send_multipart([topic.encode(), struct.pack(">Q", seq), payload])
    print(json.dumps(seq), flush=True)
