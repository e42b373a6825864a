#!/usr/bin/env python3
"""A stand-in for vLLM, for readers without one: no model, but the HTTP API, the cache and the events of an engine.

usage: engine.py NAME PORT EVENTS REPLAY, as examples/vllm/start.sh, but in the foreground

  PORT    the HTTP server: /v1/chat/completions, /v1/completions, /tokenize, /metrics
  EVENTS  the socket that publishes which blocks the engine caches
  REPLAY  the socket that sends these events again, to a subscriber that missed some

A token is a byte of the prompt, a block is 32 tokens. One prompt is computed at a time, 1,000 tokens a second; tokens
in the cache cost nothing. The cache keeps the last 1,024 blocks. Needs Python 3.10 and the packages pyzmq and msgpack.
"""

import hashlib
import http.server
import json
import queue
import struct
import sys
import threading
import time

import msgpack
import zmq

MODEL = "tutorial"
BLOCK = 32
CAPACITY = 1024
TOKENS_A_SECOND = 1000

outbox = queue.Queue()  # batches for the thread that has the sockets


def tokens_of(request):
    """tokens_of returns the tokens of a request, and None if it has no prompt."""
    if "messages" in request:
        text = "".join(f"<|{m['role']}|>{m['content']}" for m in request["messages"]) + "<|assistant|>"
    else:
        text = request.get("prompt")
    if isinstance(text, list):
        return text
    return list(text.encode()) if isinstance(text, str) else None


def compact(value):
    """compact is JSON without spaces, as vLLM writes it."""
    return json.dumps(value, separators=(",", ":"))


class Cache:
    """Cache holds blocks by the hash of their tokens and all before them, the least recently used one first."""

    def __init__(self):
        self.lock = threading.Lock()
        self.blocks = {}

    @staticmethod
    def hashes(tokens):
        key = b""
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            key = hashlib.sha256(key + struct.pack(f"<{BLOCK}I", *tokens[at : at + BLOCK])).digest()
            yield int.from_bytes(key[:8], "big") >> 1

    def matched(self, tokens):
        """matched returns how many tokens need not be computed. The last one always is, for its successor."""
        count = 0
        with self.lock:
            for key in self.hashes(tokens[:-1]):
                if key not in self.blocks:
                    break
                self.blocks[key] = self.blocks.pop(key)  # used now
                count += BLOCK
        return count

    def store(self, tokens):
        """store keeps the blocks of a prompt, and announces those that are new and those that made room."""
        events, parent = [], None
        with self.lock:
            for i, key in enumerate(self.hashes(tokens)):
                if key not in self.blocks:
                    block = tokens[i * BLOCK : (i + 1) * BLOCK]
                    events.append({"type": "BlockStored", "block_hashes": [key], "parent_block_hash": parent,
                                   "token_ids": block, "block_size": BLOCK, "lora_id": None, "medium": "GPU"})
                self.blocks.pop(key, None)
                self.blocks[key] = None
                parent = key
            while len(self.blocks) > CAPACITY:
                key = next(iter(self.blocks))
                del self.blocks[key]
                events.append({"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU"})
            if events:
                outbox.put(events)


def publish(events_port, replay_port):
    """publish owns the sockets: it sends batches as they come, and old ones to those who ask."""
    context = zmq.Context()
    live, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    live.bind(f"tcp://127.0.0.1:{events_port}")
    replay.bind(f"tcp://127.0.0.1:{replay_port}")
    kept = []  # of all batches; this engine does not live long enough to forget some
    while True:
        try:
            events = outbox.get(timeout=0.01)
            payload = msgpack.packb([time.time(), events, 0])
            number = len(kept)
            kept.append(payload)
            live.send_multipart([b"", number.to_bytes(8, "big"), payload])
        except queue.Empty:
            pass
        while replay.poll(0):
            client, _, start = replay.recv_multipart()[:3]
            for number in range(int.from_bytes(start, "big"), len(kept)):
                replay.send_multipart([client, b"", number.to_bytes(8, "big"), kept[number]])
            replay.send_multipart([client, b"", (-1).to_bytes(8, "big", signed=True), b""])


class Handler(http.server.BaseHTTPRequestHandler):
    """Handler answers as vLLM does, as far as a router can tell."""

    protocol_version = "HTTP/1.1"
    cache = Cache()
    computing = threading.Lock()
    count = threading.Lock()
    waiting = running = 0

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, kind="application/json"):
        text = body if isinstance(body, bytes) else compact(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        if self.path == "/health":
            self.answer(b"")
        elif self.path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": MODEL, "object": "model", "root": MODEL, "parent": None}]})
        elif self.path == "/kv_event_sources":
            self.answer({"0": {"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{self.server.events}",
                               "replay_endpoint": f"tcp://127.0.0.1:{self.server.replay}", "topic": ""}})
        elif self.path == "/metrics":
            use = len(self.cache.blocks) / CAPACITY
            lines = {"num_requests_waiting": Handler.waiting, "num_requests_running": Handler.running, "kv_cache_usage_perc": use}
            text = "".join(f"# TYPE vllm:{name} gauge\nvllm:{name} {value}\n" for name, value in lines.items())
            self.answer(text.encode(), kind="text/plain")
        else:
            self.answer({"error": {"message": "not found"}}, 404)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        tokens = tokens_of(request)
        chat = self.path == "/v1/chat/completions"
        if self.path == "/tokenize" and tokens is not None:
            self.answer({"count": len(tokens), "max_model_len": 1 << 20, "tokens": tokens})
        elif (chat or self.path == "/v1/completions") and tokens is not None:
            self.complete(tokens, chat, request.get("stream", False))
        else:
            self.answer({"error": {"message": "not found, or no prompt"}}, 404)

    def complete(self, tokens, chat, stream):
        with Handler.count:
            Handler.waiting += 1
        with Handler.computing:
            with Handler.count:
                Handler.waiting -= 1
                Handler.running += 1
            cached = self.cache.matched(tokens)
            time.sleep((len(tokens) - cached) / TOKENS_A_SECOND)
            self.cache.store(tokens)
            with Handler.count:
                Handler.running -= 1
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 1, "total_tokens": len(tokens) + 1,
                 "prompt_tokens_details": {"cached_tokens": cached}}
        said = f"I am {self.server.name}."
        about = {"id": "cmpl-1", "created": int(time.time()), "model": MODEL}
        if not stream:
            part = {"message": {"role": "assistant", "content": said}} if chat else {"text": said}
            self.answer(about | {"object": "chat.completion" if chat else "text_completion",
                                 "choices": [{"index": 0, "finish_reason": "stop"} | part], "usage": usage})
            return
        part = {"delta": {"role": "assistant", "content": said}} if chat else {"text": said}
        chunk = about | {"object": "chat.completion.chunk" if chat else "text_completion"}
        lines = [chunk | {"choices": [{"index": 0, "finish_reason": "stop"} | part]}, chunk | {"choices": [], "usage": usage}]
        text = "".join(f"data: {compact(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
        self.answer(text.encode(), kind="text/event-stream")


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    server = Server(("127.0.0.1", int(sys.argv[2])), Handler)
    server.name, server.events, server.replay = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
    threading.Thread(target=publish, args=(server.events, server.replay), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
