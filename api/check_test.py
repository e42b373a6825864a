"""Asks a running server as sgl-router and other clients of gRPC do, with grpcio."""

import hashlib
import os
import re
import socket
import struct
import subprocess
import threading
import time
import unittest

import grpc
import msgpack
import zmq
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from kvconductor.v1 import conductor_pb2 as pb
from kvconductor.v1 import conductor_pb2_grpc
from kvindexer.v1 import kv_indexer_pb2, kv_indexer_pb2_grpc

WORKER = "http://127.0.0.1:30000"
PAGE = 2
PROMPT = [10, 20, 30, 40, 50, 60, 70, 80]


def pages(tokens, size):
    """The hashes of a prompt's pages as sgl-router computes them, a short last page included."""
    digest, out = b"", []
    for at in range(0, len(tokens), size):
        page = tokens[at : at + size]
        digest = hashlib.sha256(digest + struct.pack(f"<{len(page)}I", *page)).digest()
        out.append(struct.unpack(">q", digest[:8])[0])
    return out


class Engine:
    """Publishes as SGLang does, once the server has subscribed."""

    def __init__(self):
        self.socket = zmq.Context.instance().socket(zmq.XPUB)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.next = 0

    def subscribed(self):
        self.socket.recv()

    def publish(self, *events):
        self.socket.send_multipart([b"", struct.pack(">Q", self.next), msgpack.packb([time.time(), list(events), 0])])
        self.next += 1

    def store(self, hashes, tokens, parent=None, medium="GPU"):
        self.publish(["BlockStored", hashes, parent, tokens, PAGE, None, medium])


class GRPC(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = Engine()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = dict(os.environ, CONDUCTOR_SHUTDOWN_DRAIN="0s")
        listen = ["--listen", f"127.0.0.1:{port}=grpc", "--listen", "127.0.0.1:0=conductor"]
        cls.server = subprocess.Popen([os.environ["CONDUCTOR_BINARY"], "serve", *listen], stderr=subprocess.PIPE, text=True, env=env)
        address = None
        for line in cls.server.stderr:
            if found := re.search(r'"address":"([^"]+)","dialect":"conductor"', line):
                address = found.group(1)
                break
        threading.Thread(target=cls.server.stderr.read, daemon=True).start()
        cls.register(address)
        cls.engine.subscribed()
        hashes = pages(PROMPT, PAGE)
        cls.engine.store(hashes[:3], PROMPT[:6])
        cls.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        cls.router = kv_indexer_pb2_grpc.KVIndexerStub(cls.channel)
        cls.conductor = conductor_pb2_grpc.ConductorStub(cls.channel)

    @classmethod
    def register(cls, address):
        import json
        import urllib.request

        body = {"endpoint": f"tcp://127.0.0.1:{cls.engine.port}", "type": "SGLang", "modelname": "m", "instance_id": WORKER, "block_size": PAGE, "dp_rank": 0}
        request = urllib.request.Request(f"http://{address}/register", json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request).read()

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.terminate()
        cls.server.wait(10)

    def test_goldens(self):
        self.assertEqual(pages([1, 2, 3, 4], 4), [-3488128144981237669])
        self.assertEqual(pages([1, 2, 3, 4, 5], 4), [-3488128144981237669, -3787494577174227566])
        self.assertEqual(pages(PROMPT, 2), [978178666101069530, -895308556211281782, -8033692805846017938, 835415944263129316])

    def test_router(self):
        request = kv_indexer_pb2.MatchExternalKvPrefixRequest(hashes=pages(PROMPT + [90], PAGE))
        deadline = time.monotonic() + 20
        while True:
            got = self.router.MatchExternalKvPrefix(request, timeout=5)
            if got.best_prefix_blocks >= 3 or time.monotonic() > deadline:
                break
        self.assertEqual([(m.worker_address, m.matched_prefix_blocks, m.worker_id) for m in got.matches], [(WORKER, 3, WORKER)])
        self.assertEqual((got.best_prefix_blocks, got.blocks_read), (3, 5))
        empty = self.router.MatchExternalKvPrefix(kv_indexer_pb2.MatchExternalKvPrefixRequest(hashes=[7]), timeout=5)
        self.assertEqual((len(empty.matches), empty.best_prefix_blocks), (0, 0))
        with self.assertRaises(grpc.RpcError) as none:
            self.router.MatchExternalKvPrefix(kv_indexer_pb2.MatchExternalKvPrefixRequest(), timeout=5)
        self.assertEqual(none.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_watch(self):
        prompt = [1, 2, 3, 4]
        hashes = pages(prompt, PAGE)
        by_hash = pb.QueryRequest(model="m", block_size=PAGE, hashes=pb.Hashes(kind=pb.HASH_KIND_SGLANG, values=[h % 2**64 for h in hashes]))
        by_token = pb.QueryRequest(model="m", block_size=PAGE, tokens=pb.Tokens(ids=prompt))
        watch = self.conductor.Watch(pb.WatchRequest(query=by_hash, interval_ms=20), timeout=30)
        self.assertEqual(next(watch).rows[0].longest_matched, 0)
        self.engine.store(hashes[:1], prompt[:2])
        self.assertEqual(next(watch).rows[0].longest_matched, 2)
        self.engine.store(hashes[1:], prompt[2:], parent=hashes[0], medium="CPU_PINNED")
        changed = next(watch)
        self.assertEqual(changed.rows[0].longest_matched, 4)
        self.assertEqual(self.conductor.Query(by_token, timeout=5), changed)
        both = self.conductor.QueryBatch(pb.QueryBatchRequest(queries=[by_token, by_hash, pb.QueryRequest()]), timeout=5)
        self.assertEqual([a.response for a in both.answers[:2]], [changed, changed])
        self.assertEqual(both.answers[2].error.field, "model")
        watch.cancel()

    def test_health_and_reflection(self):
        health = health_pb2_grpc.HealthStub(self.channel).Check(health_pb2.HealthCheckRequest(service="kv_indexer.v1.KVIndexer"), timeout=5)
        self.assertEqual(health.status, health_pb2.HealthCheckResponse.SERVING)
        services = ProtoReflectionDescriptorDatabase(self.channel).get_services()
        self.assertIn("kvconductor.v1.Conductor", services)
        self.assertIn("kv_indexer.v1.KVIndexer", services)


if __name__ == "__main__":
    unittest.main()
