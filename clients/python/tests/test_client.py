"""Runs the installed client against a real server: CONDUCTOR_BINARY serves it."""

import asyncio
import http.server
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import httpx

from kvconductor import AsyncClient, Client, ConductorError, Rank, Registration, RoutedAnswer, Row


def serve(directory: str) -> tuple[subprocess.Popen, str]:
    """Starts a server on a free port, and returns it with its base URL."""
    process = subprocess.Popen(
        [os.environ["CONDUCTOR_BINARY"], "serve", "--listen", "127.0.0.1:0=conductor", "--log-format", "json"],
        cwd=directory, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r'"address":"(127\.0\.0\.1:[0-9]+)"', line)
        if found:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, "http://" + found[1]
    raise RuntimeError("the server did not start")


class Statuses(unittest.TestCase):
    def test_errors_of_single_queries_and_reports(self):
        """A fault of the server is not taken for one of the input."""
        reasons = {"missing": 400, "": 400, "forbidden": 403, "not_found": 404, "too_many_requests": 429, "internal": 500,
                   "busy": 503, "memory": 503, "replicas": 503, "shutting_down": 503, "unserved": 503}
        errors = [{"prompt": i, "error": "no", "reason": reason} for i, reason in enumerate(reasons)]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                text = json.dumps({"errors": errors, "answers": errors}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            query = {"model": "m", "block_size": 16, "tokens": [1]}
            with Client(f"http://127.0.0.1:{server.server_port}") as c:
                reports = c.routed_batch([{**query, "instance": "a"}] * len(reasons)).errors
                answers = c.query_batch([query] * len(reasons))
            server.shutdown()
        for errors in (reports, answers):
            self.assertEqual([e.status for e in errors], list(reasons.values()))


class AgainstServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.server, cls.url = serve(cls.directory.name)

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait(300)
        cls.directory.cleanup()

    registration = Registration("tcp://127.0.0.1:1", "vLLM", "m", "engine", 16)

    def test_sync(self):
        with Client(self.url) as c:
            self.assertTrue(c.ready())
            c.register(self.registration)
            c.register(self.registration)
            rows = c.query("m", 16, [1, 2, 3] * 100, detail=True)
            self.assertEqual([(r.instance, r.longest, r.media) for r in rows], [("engine", 0, {"GPU": 0, "CPU": 0, "DISK": 0})])
            self.assertEqual(rows[0].ranks, (Rank(0, 0, 0, 0),))
            self.assertIn(rows[0].detail[0].state, ("connecting", "stale"))
            self.assertEqual(c.query("m", 16, seq_hashes=[1, 2**64 - 1], instance="engine")[0].longest, 0)
            self.assertEqual(c.query("m", 16, seq_hashes=[1], hash_kind="engine")[0].instance, "engine")
            with self.assertRaises(ConductorError) as refused:
                c.query("m", 16, seq_hashes=[1], hash_kind="other")
            self.assertEqual((refused.exception.status, refused.exception.field), (400, "hash"))
            self.assertEqual(c.query("none", 16, [1]), [])
            self.assertEqual(c.query("none", 16, [1], detail=True), [])
            good, bad = c.query_batch([{"model": "m", "block_size": 16, "tokens": [1]}, {"model": "", "block_size": 16, "tokens": [1]}])
            self.assertEqual(good[0].instance, "engine")
            self.assertEqual((bad.status, bad.field), (400, "model"))
            with self.assertRaises(ConductorError) as refused:
                c.query("m", 0, [1])
            self.assertEqual((refused.exception.status, refused.exception.field), (400, "block_size"))
            self.assertEqual(c.feedback("engine", matched=32, cached=16)["precision"], 0.5)
            self.assertEqual(c.services()[0]["InstanceID"], "engine")
            c.register(Registration(instance_id="found", discover="http://127.0.0.1:1"))
            c.register(Registration(type="Standard", modelname="u", instance_id="llama", block_size=16, events="none", capacity_blocks=8, approximate="count"))
            self.assertEqual(c.query("u", 16, [1], detail=True)[0].detail[0].state, "approximate")
            c.unregister("found")
            c.unregister("engine")
            with self.assertRaises(ConductorError) as gone:
                c.unregister("engine")
            self.assertEqual(gone.exception.status, 404)

    def test_msgpack(self):
        with Client(self.url, msgpack=True) as c, Client(self.url) as plain:
            c.register(Registration("tcp://127.0.0.1:1", "vLLM", "p", "packed", 16))
            row = c.query("p", 16, [1, 2, 3] * 100)[0]
            self.assertEqual((row.instance, row.longest, row.media, row.ranks), ("packed", 0, {}, (Rank(0, 0, 0, 0),)))
            self.assertEqual(row.ranks, plain.query("p", 16, [1, 2, 3] * 100)[0].ranks)
            self.assertEqual(c.query("p", 16, seq_hashes=[1, 2**64 - 1])[0].instance, "packed")
            self.assertIn(c.query("p", 16, [1], detail=True)[0].detail[0].state, ("connecting", "stale"))
            self.assertEqual(c.query("none", 16, [1]), [])
            self.assertEqual(c.query("none", 16, [1], detail=True), [])
            with self.assertRaises(ConductorError) as refused:
                c.query("p", 0, [1])
            self.assertEqual((refused.exception.status, refused.exception.field), (400, "block_size"))
            c.unregister("packed")

        async def main():
            async with AsyncClient(self.url, msgpack=True) as c:
                self.assertEqual(await c.query("none", 16, [1]), [])
        asyncio.run(main())

    def test_candidates(self):
        prompt = list(range(64))

        def engine(name, **more):
            return Registration(type="Standard", modelname="c", instance_id=name, block_size=16, events="none", capacity_blocks=8, **more)

        with Client(self.url) as plain, Client(self.url, msgpack=True) as packed:
            watch = plain.watch_instances()
            self.assertNotIn("one", [i.instance for i in next(watch)])
            plain.register(engine("one", address="http://one:8000", adapters=("sql",)))
            plain.register(engine("two"))
            seen = {}
            while len(seen) < 2:
                seen = {i.instance: i for i in next(watch) if i.model == "c"}
            watch.close()
            self.assertEqual((seen["one"].address, seen["one"].adapters, seen["one"].ranks), ("http://one:8000", ("sql",), (0,)))
            self.assertEqual({i.instance: i for i in packed.instances() if i.model == "c"}, seen)
            for n, c in enumerate((plain, packed)):
                answer = c.candidates("sql", prompt)
                self.assertEqual((answer.model, answer.adapter, answer.block_size), ("c", "sql", 16))
                one = answer.rows[0]
                self.assertEqual((one.instance, one.address, one.state, one.expected), ("one", "http://one:8000", "approximate", n * 64))
                if n == 0:
                    self.assertEqual(c.routed_answer(answer.id, instance="one", rank=0, request_id="by-id"), ())
            self.assertEqual(plain.candidates("sql", prompt, top=1).rows[0].ranks[0].expected, 64)
            plain.take_back("by-id")
            self.assertEqual(plain.candidates("sql", prompt).rows[0].expected, 0)
            for arguments, status, reason in (
                ({"model": "nobody"}, 404, "unknown_model"), ({"model": "c", "block_size": 32}, 400, "unknown_block_size")):
                with self.assertRaises(ConductorError) as refused:
                    plain.candidates(tokens=prompt, **arguments)
                self.assertEqual((refused.exception.status, refused.exception.reason), (status, reason))
                self.assertTrue(refused.exception.known)
            with self.assertRaises(ConductorError) as forgotten:
                plain.routed_answer("7", instance="one")
            self.assertEqual((forgotten.exception.status, forgotten.exception.reason), (404, "unknown_answer"))

        async def main():
            async with AsyncClient(self.url) as c:
                answer = await c.candidates("c", prompt)
                await c.routed_answer(answer.id, instance="two")
                self.assertEqual((await c.candidates("c", prompt)).rows[1].expected, 64)
                self.assertEqual(len([i for i in await c.instances() if i.model == "c"]), 2)
                async for instances in c.watch_instances():
                    self.assertEqual(len([i for i in instances if i.model == "c"]), 2)
                    break
        asyncio.run(main())

    def test_routed(self):
        with Client(self.url) as plain, Client(self.url, msgpack=True) as packed:
            plain.register(Registration("tcp://127.0.0.1:1", "vLLM", "r", "a", 16))
            plain.register(Registration("tcp://127.0.0.1:1", "vLLM", "r", "b", 16))
            prompt = list(range(64))

            def expected(tokens=prompt, **options):
                rows = [c.query("r", 16, tokens, expected=True, **options) for c in (plain, packed)]
                for of in zip(*rows):
                    self.assertEqual(of[0].expected, of[1].expected)
                    self.assertEqual(of[0].ranks, of[1].ranks)
                return [(row.instance, row.longest, row.expected, row.ranks[0].expected) for row in rows[0]]

            for c in (plain, packed):
                self.assertEqual(expected(), [("a", 0, 0, 0), ("b", 0, 0, 0)])
                for request_id in ("one", "a/b ü?&", ".", ".."):
                    for _ in range(2):
                        warnings = c.routed("r", 16, prompt, instance="a", rank=0, ttl=600, request_id=request_id)
                        self.assertTrue(warnings[0].startswith("a|default|0 is "), warnings)
                    self.assertEqual(expected(), [("a", 0, 64, 64), ("b", 0, 0, 0)])
                    c.take_back(request_id)
                    with self.assertRaises(ConductorError) as gone:
                        c.take_back(request_id, tenant="default")
                    self.assertEqual((gone.exception.status, gone.exception.reason), (404, "not_found"))
                answer = c.routed_batch([
                    {"model": "r", "block_size": 16, "tokens": prompt, "instance": "b", "ttl": 600, "request_id": "one"},
                    {"model": "r", "block_size": 16, "tokens": prompt, "instance": "c"},
                    {"model": "r", "block_size": 16, "seq_hashes": [2**64 - 1, 5], "hash_kind": "engine", "instance": "a", "ttl": 600, "request_id": "two"},
                    {"model": "r", "block_size": 0, "tokens": prompt, "instance": "a"},
                ])
                self.assertEqual(len(answer.warnings), 2)
                self.assertEqual([e and (e.status, e.field, e.known) for e in answer.errors], [None, (404, "instance_id", ("a", "b")), None, (400, "block_size", ())])
                self.assertEqual(expected(), [("a", 0, 0, 0), ("b", 0, 64, 64)])
                self.assertEqual(expected(None, seq_hashes=[2**64 - 1, 5], hash_kind="engine"), [("a", 0, 32, 32), ("b", 0, 0, 0)])
                self.assertEqual([row.instance for row in c.query("r", 16, prompt, expected=True, top=1)], ["b"])
                c.take_back("one")
                c.take_back("two")
                for wrong, status, field, known in (
                    ({"instance": "c"}, 404, "instance_id", ("a", "b")),
                    ({"instance": "a", "rank": 3}, 404, "dp_rank", ("0",)),
                    ({"instance": "a", "ttl": 365 * 86400.0}, 400, "ttl", ()),
                    ({"instance": "a", "request_id": "x" * 129}, 400, "request_id", ()),
                    ({"instance": "a", "tenant": "other"}, 404, "model", ()),
                ):
                    with self.assertRaises(ConductorError) as refused:
                        c.routed("r", 16, prompt, **wrong)
                    self.assertEqual((refused.exception.status, refused.exception.field, refused.exception.known), (status, field, known))
                with self.assertRaises(ConductorError) as refused:
                    c.routed_batch([{"model": "r", "block_size": 16, "tokens": [1], "instance": "a"}] * 257)
                self.assertEqual(refused.exception.status, 400)
                self.assertEqual(c.routed_batch([]), RoutedAnswer(()))
            self.assertEqual(plain.query("r", 16, prompt)[0].expected, 0)
            for name in ("a", "b"):
                plain.unregister(name)

        async def main():
            async with AsyncClient(self.url) as c:
                await c.register(Registration("tcp://127.0.0.1:1", "vLLM", "r", "a", 16))
                await asyncio.gather(*(c.routed("r", 16, prompt[: 16 * n], instance="a", ttl=600, request_id=str(n)) for n in range(1, 5)))
                self.assertEqual((await c.query("r", 16, prompt, expected=True))[0].expected, 64)
                await asyncio.gather(*(c.take_back(str(n)) for n in range(2, 5)))
                self.assertEqual((await c.query("r", 16, prompt, expected=True))[0].expected, 16)
                self.assertEqual((await c.routed_batch([{"model": "r", "block_size": 16, "tokens": prompt, "instance": "x"}])).errors[0].status, 404)
                await c.unregister("a")
        asyncio.run(main())

    def test_approximate(self):
        with Client(self.url) as plain, Client(self.url, msgpack=True) as packed:
            plain.register(Registration(type="Standard", modelname="l", instance_id="llama", block_size=16, events="none", capacity_blocks=100))
            self.assertEqual(plain.routed("l", 16, [1] * 40, instance="llama"), ())
            for c in (plain, packed):
                row = c.query("l", 16, [1] * 40, expected=True)[0]
                self.assertEqual((row.longest, row.expected, row.approximate), (0, 32, True))
                self.assertTrue(c.query("l", 16, [1] * 40)[0].approximate)
            plain.unregister("llama")

    def test_async(self):
        async def main():
            async with AsyncClient(self.url) as c:
                await c.register(Registration("tcp://127.0.0.1:1", "vLLM", "a", "async", 16))
                answers = await asyncio.gather(*(c.query("a", 16, [i] * 64) for i in range(20)))
                self.assertEqual({rows[0].instance for rows in answers}, {"async"})
                self.assertTrue(await c.ready())
                await c.unregister("async")
                with self.assertRaises(ConductorError):
                    await c.unregister("async")
        asyncio.run(main())


class Busy(http.server.BaseHTTPRequestHandler):
    """Answers 503 twice, then a row of a later server."""

    calls = 0
    connections: set = set()
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Busy.calls += 1
        Busy.connections.add(self.client_address)
        row = {"longest_matched": 16, "GPU": 16, "later": {"x": 1}, "rank_matches": {"10": {"gpu": 16, "cpu": 16, "disk": 16}, "2": {"gpu": 0, "cpu": 0, "disk": 0}}}
        busy = Busy.calls % 3 != 0
        body = json.dumps({"error": "busy", "reason": "busy"} if busy else {"default": {"a": row}}).encode()
        self.send_response(503 if busy else 200)
        if self.path.endswith("?detail=1"):
            self.send_header("Retry-After", "3600")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Retries(unittest.TestCase):
    def test_busy(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with Client(url) as c:
            row = c.query("m", 16, [1])[0]
            self.assertEqual((row.longest, row.media, [r.rank for r in row.ranks]), (16, {"GPU": 16}, [2, 10]))
        with Client(url, retries=1) as c:
            with self.assertRaises(ConductorError) as refused:
                c.query("m", 16, [1])
            self.assertEqual(refused.exception.reason, "busy")
        self.assertEqual(len(Busy.connections), 2, "each client has one connection")
        Busy.calls = 0
        begun = time.monotonic()
        with Client(url, timeout=60) as c:
            with self.assertRaises(ConductorError) as refused:
                c.query("m", 16, [1], detail=True)
        self.assertEqual((refused.exception.retry_after, Busy.calls), (3600, 1))
        self.assertLess(time.monotonic() - begun, 30)
        server.shutdown()
        server.server_close()

    def test_deadline(self):
        """Tells that attempts together take no longer than the timeout."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            begun = time.monotonic()
            with Client(url, timeout=0.3) as c, self.assertRaises(ConductorError) as failed:
                c.query("m", 16, [1])
            self.assertLess(time.monotonic() - begun, 10)
            self.assertEqual((failed.exception.status, failed.exception.reason), (0, "unreachable"))
            self.assertEqual(str(failed.exception), f"{url}: no answer within 0.3 s")
            self.assertIsInstance(failed.exception.__cause__, httpx.TimeoutException)

    def test_dead(self):
        """A server that is not there is the error that callers handle anyway."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with Client(url) as c:
            for call in (lambda: c.query("m", 16, [1]), c.ready, c.services):
                with self.assertRaises(ConductorError) as failed:
                    call()
                self.assertEqual((failed.exception.status, failed.exception.reason), (0, "unreachable"))
                self.assertTrue(str(failed.exception).startswith(url + ": "), failed.exception)

        async def main():
            async with AsyncClient(url) as a:
                for call in (lambda: a.query("m", 16, [1]), a.ready):
                    with self.assertRaises(ConductorError) as failed:
                        await call()
                    self.assertEqual(failed.exception.reason, "unreachable")
        asyncio.run(main())

    def test_wrong(self):
        for base in ("", "conductor:13333", "ftp://x", "http://x?y", "http://x ", None):
            with self.assertRaises(ValueError):
                Client(base)
        c = Client("http://127.0.0.1:1")
        query = {"model": "m", "block_size": 16, "tokens": [1]}
        report = query | {"instance": "a"}
        for call, kind, text in (
            (lambda: c.query("m", 16), TypeError, "a prompt is either tokens or seq_hashes, and neither is given"),
            (lambda: c.query("m", 16, [1], seq_hashes=[1]), TypeError, "a prompt is either tokens or seq_hashes, and both are given"),
            (lambda: c.query("m", 16, [1, 2**32]), ValueError, "tokens must be from 0 to 4294967295, got 4294967296 at index 1"),
            (lambda: c.query("m", 16, [-1]), ValueError, "tokens must be from 0 to 4294967295, got -1 at index 0"),
            (lambda: c.query("m", 16, seq_hashes=[1, 2**64]), ValueError, "seq_hashes must be from 0 to 18446744073709551615, got 18446744073709551616 at index 1"),
            (lambda: c.query("m", 16, "hello"), TypeError, "tokens must be a sequence of int, got str"),
            (lambda: c.query("m", 16, [1, "2"]), TypeError, "tokens must be a sequence of int, got '2' at index 1"),
            (lambda: c.query("m", 16, 7), TypeError, "tokens must be a sequence of int, got int"),
            (lambda: c.query("m", 16, [1, 2.0]), TypeError, "tokens must be a sequence of int, got 2.0 at index 1"),
            (lambda: c.query(7, 16, [1]), TypeError, "model must be a str, got 7"),
            (lambda: c.query("m", "16", [1]), TypeError, "block_size must be an int, got '16'"),
            (lambda: c.query("m", True, [1]), TypeError, "block_size must be an int, got True"),
            (lambda: c.query("m", 16, [1], detail=1), TypeError, "detail must be a bool, got 1"),
            (lambda: c.query("m", 16, [1], top="8"), TypeError, "top must be an int, got '8'"),
            (lambda: c.query_batch([query, query | {"tokens": None}]), TypeError, "query 1: a prompt is either tokens or seq_hashes, and neither is given"),
            (lambda: c.routed_batch([report, report | {"rank": "0"}]), TypeError, "report 1: rank must be an int, got '0'"),
            (lambda: c.unregister(7), TypeError, "instance must be a str, got 7"),
            (lambda: c.register({"endpoint": "x"}), TypeError, "registration must be a Registration, got {'endpoint': 'x'}"),
        ):
            with self.subTest(text), self.assertRaises(kind) as wrong:
                call()
            self.assertEqual(str(wrong.exception), text)
        c.close()

    def test_without_msgpack(self):
        """Names the extra that is missing."""
        with unittest.mock.patch.dict(sys.modules, {"msgpack": None}), self.assertRaises(ImportError) as missing:
            Client("http://127.0.0.1:1", msgpack=True)
        self.assertIn("kvconductor[msgpack]", str(missing.exception))

    def test_rows(self):
        with self.assertRaises(KeyError):
            Row.read("a", {})


if __name__ == "__main__":
    unittest.main()
