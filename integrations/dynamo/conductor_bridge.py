#!/usr/bin/env python3
"""Lets Dynamo's frontend ask Conductor which worker holds which prefix.

With --use-remote-indexer the frontend keeps no index. For each request it asks the endpoint kv_indexer_query
of the workers' component, over Dynamo's request plane. The bridge is that endpoint, and answers from
Conductor's POST /query_tiered_by_hash. With --events it also registers the workers that it finds in Dynamo's
discovery, so that Conductor follows them under the ids by which the frontend knows them.

Dynamo's runtime does the discovery, with any of its backends, but it cannot give the answers: what a Python
handler yields is sent as {"data": ...}, and the frontend expects {"TieredScores": ...} without that envelope.
So the bridge takes over the socket on which the runtime listens, and speaks the wire format of release 1.6
there, which is no public interface: see Plane.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import socket
import stat
import struct

import aiohttp

log = logging.getLogger("conductor_bridge")

QUERY = "kv_indexer_query"
MAX_REQUEST = 32 << 20  # bytes; Dynamo's own server refuses more, too
GRACE = 10  # seconds until a worker that left discovery is unregistered
ENDS = (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError)  # of a frontend's connection
FAILURES = (OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError, aiohttp.ClientError)


class Conductor:
    """Conductor is the HTTP API of Conductor, in the dialect of Dynamo's indexer."""

    def __init__(self, args):
        self.url, self.token_file, self.timeout = args.conductor.rstrip("/"), args.token_file, args.timeout
        self.session = aiohttp.ClientSession()
        self.failing = False

    async def post(self, path, body, timeout):
        """post returns status and body of the answer."""
        headers = {}
        if self.token_file:
            with open(self.token_file) as file:
                headers["Authorization"] = "Bearer " + file.read().strip()
        timeout = aiohttp.ClientTimeout(total=timeout)
        async with self.session.post(self.url + path, json=body, headers=headers, timeout=timeout) as answer:
            return answer.status, await answer.text()

    async def scores(self, model, hashes, device_only):
        """scores returns which workers hold how many blocks of a prompt, as Dynamo's WireTieredMatchDetails.

        If Conductor does not answer, no worker holds any: the frontend would fail the request on an error,
        and like this it routes by load.
        """
        error, tiered = None, {"device": {"scores": [], "frequencies": []}, "lower_tier": []}
        if not hashes:
            return tiered
        try:
            query = {"model_name": model, "block_hashes": hashes}
            status, body = await self.post("/query_tiered_by_hash", query, self.timeout)
            if status == 200:
                found = json.loads(body)["tiered"]
                tiered["device"]["scores"] = numbered(found["device"]["scores"])
                for tier, hits in [] if device_only else found["lower_tier"]:
                    tiered["lower_tier"].append([tier, {"hits": numbered(hits["hits"])}])
            elif status != 404:  # no worker of the model is registered yet
                error = f"status {status}: {body}"
        except FAILURES as failure:
            error = repr(failure)
        if bool(error) != self.failing:
            self.failing = not self.failing
            log.warning("Conductor %s", f"does not answer, so load decides: {error}" if error else "answers again")
        return tiered


def numbered(hits):
    """numbered leaves out instances whose ids are no numbers, because the frontend cannot read them."""
    return [hit for hit in hits if isinstance(hit[0]["worker_id"], int)]


class Plane:
    """Plane answers indexer queries on Dynamo's TCP request plane, as of release 1.6.

    A frontend sends requests over connections that it keeps: u16 length and path of the endpoint, u16 length
    and headers, u32 length and payload, all big-endian. Each is acknowledged with a u32 zero. The payload is a
    message of two parts: u64 lengths of header and data, a u64 checksum that may be zero, header, data. The
    header names an address of the frontend, to which the answer goes over a connection of its own, as such
    messages: handshake, prologue, a message for each item, one with complete_final, and the sentinel.
    """

    def __init__(self, conductor):
        self.conductor, self.tasks = conductor, set()

    async def serve(self, reader, writer):
        """serve reads the requests of one connection until the frontend closes it."""

        async def part(form):
            (length,) = struct.unpack(form, await reader.readexactly(struct.calcsize(form)))
            if length > MAX_REQUEST:
                raise ConnectionError
            return await reader.readexactly(length)

        with contextlib.closing(writer), contextlib.suppress(*ENDS):
            while True:
                path, _, payload = await part(">H"), await part(">H"), await part(">I")
                refusal = b"" if path.endswith(b"/" + QUERY.encode()) else b"Unknown endpoint: " + path
                writer.write(struct.pack(">I", len(refusal)) + refusal)
                await writer.drain()
                if not refusal:
                    task = asyncio.create_task(self.answer(payload))
                    self.tasks.add(task)
                    task.add_done_callback(self.tasks.discard)

    async def answer(self, payload):
        try:
            header, data, _ = struct.unpack_from(">QQQ", payload)
            control = json.loads(payload[24:24 + header])
            if control.get("payload_codec") != "json" or control["connection_info"]["transport"] != "tcp_server":
                raise ValueError(f"this is not the request plane of Dynamo 1.6 over TCP and JSON: {control}")
            info = json.loads(control["connection_info"]["info"])
            query = json.loads(payload[24 + header:24 + header + data])
            scores = await self.conductor.scores(query["model_name"], query["block_hashes"], query.get("device_only"))
            await asyncio.wait_for(self.respond(info, scores), 10)
        except (struct.error, *FAILURES) as error:
            log.warning("a query was not answered: %r", error)

    async def respond(self, info, scores):
        host, _, port = info["address"].rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(
            message(header={"subject": info["subject"], "stream_type": "response"})
            + message(header={"error": None})
            + message(data={"data": {"TieredScores": scores}, "complete_final": False})
            + message(data={"data": None, "complete_final": True})
            + message(header="sentinel"))
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await reader.read()  # the frontend closes first, by a reset if it wants no more than the scores


def message(header=None, data=None):
    header, data = (json.dumps(part).encode() if part else b"" for part in (header, data))
    return struct.pack(">QQQ", len(header), len(data), 0) + header + data


def take_listener(port):
    """take_listener takes the socket that listens on the port from the part of this process that accepts on it.

    The former owner's file descriptor is left with a socket to which nobody connects.
    """
    for name in os.listdir("/proc/self/fd"):
        if not os.path.exists(f"/proc/self/fd/{name}") or not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            continue
        listener = socket.socket(fileno=os.dup(int(name)))
        inet = listener.family in (socket.AF_INET, socket.AF_INET6)
        if inet and listener.getsockname()[1] == port and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with socket.socket(socket.AF_UNIX) as idle:
                idle.setblocking(False)
                idle.bind("")  # a name that Linux chooses, not in the file system
                idle.listen()
                os.dup2(idle.fileno(), int(name), inheritable=False)
            return listener
        listener.close()
    raise RuntimeError(f"Dynamo's runtime does not listen on port {port}")


async def follow(args, conductor, client):
    """follow registers the workers that are in discovery, and unregisters those that have gone from it.

    It repeats registrations every 10 s, because without snapshot.dir Conductor forgets them when it restarts.
    """
    hosts, seen, seconds, said = {}, {}, 0, ""

    async def tell(path, worker):
        nonlocal said
        for rank, body in enumerate(registrations(args, worker, hosts[worker])):
            try:
                status, answer = await conductor.post(path, body, 5)
                error = "" if status < 300 or status in (404, 409) else f"status {status}: {answer}"
            except FAILURES as failure:
                error = repr(failure)
            if error and error != said:
                log.warning("%s of worker %s, rank %s: %s", path, worker, rank, error)
            said = error or said

    while True:
        found = {one.instance_id: split_address(one)[0] for one in client.instances()}
        for worker, host in found.items():
            new, hosts[worker], seen[worker] = worker not in hosts, host, seconds
            if new:
                log.info("worker %s on %s", worker, host)
            if new or seconds % 10 == 0:
                await tell("/register", worker)
        for worker in [worker for worker in hosts if seconds - seen[worker] > GRACE]:
            log.info("worker %s is gone", worker)
            await tell("/unregister", worker)
            del hosts[worker]
        seconds += 1
        await asyncio.sleep(1)


def split_address(instance):
    """split_address returns host and port of an instance on the request plane: host:port/id/path."""
    return instance.transport.address.split("/")[0].rpartition(":")[::2]


def registrations(args, worker, host):
    """registrations yields one for each rank. As with vLLM, a rank's ports are those of rank 0 plus its number."""
    events, replay = address(args.events, host), address(args.replay, host)
    for rank in range(args.ranks if events else 0):
        body = {"instance_id": worker, "dp_rank": rank, "model_name": args.model, "block_size": args.block_size}
        for name, url in (("endpoint", events), ("replay_endpoint", replay)):
            if url:
                body[name] = re.sub(r"\d+$", lambda port: str(int(port[0]) + rank), url)
        yield body


def address(urls, host):
    """address returns the URL of HOST=URL for this host, else that for all hosts, else an empty text."""
    named = dict(url.rpartition("=")[::2] for url in urls)
    return named.get(host) or named.get("", "").replace("{host}", host)


async def run(args):
    os.environ["DYN_REQUEST_PLANE_CODEC"] = "json"  # frontends read it in discovery, and keep to it
    from dynamo.runtime import DistributedRuntime

    loop, conductor = asyncio.get_running_loop(), Conductor(args)
    runtime = DistributedRuntime(loop, args.discovery_backend, "tcp")

    async def unreached(request):
        yield {}

    def register(endpoint):
        return asyncio.ensure_future(endpoint.serve_endpoint(unreached, graceful_shutdown=False))

    # This endpoint only makes the runtime listen, so that frontends do not find the other one too early.
    first = runtime.endpoint("conductor.bridge.ready")
    ends = [register(first)]
    watch = await first.client()
    while not (own := [one for one in watch.instances() if one.instance_id == first.connection_id()]):
        await asyncio.wait(ends, timeout=0.05)
        if ends[0].done():
            raise RuntimeError(f"Dynamo's runtime does not serve: {ends[0].exception()}")
    port = int(split_address(own[0])[1])
    await asyncio.start_server(Plane(conductor).serve, sock=take_listener(port))
    query = f"{args.endpoint.rpartition('.')[0]}.{QUERY}"
    ends.append(register(runtime.endpoint(query)))
    log.info("%s on port %d answers from %s", query, port, args.conductor)

    workers = await runtime.endpoint(args.endpoint).client()
    ends.append(asyncio.create_task(follow(args, conductor, workers)))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    ends.append(asyncio.create_task(stop.wait()))
    ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    runtime.shutdown()  # takes the endpoints out of discovery
    await asyncio.sleep(1)  # until frontends have noticed
    await conductor.session.close()
    for task in ended:
        task.result()


def arguments():
    parser = argparse.ArgumentParser(description="Lets Dynamo's frontend ask Conductor, with --use-remote-indexer.")
    add = parser.add_argument
    add("--conductor", required=True, metavar="URL", help="Conductor's listener for Dynamo, http://conductor:8090")
    add("--endpoint", default="dynamo.backend.generate", help="of the workers (default %(default)s)")
    add("--events", action="append", default=[], metavar="URL", help="where workers publish: tcp://{host}:5557, or "
        "HOST=URL for one host; may be repeated. Without it, register workers yourself by their ids in Dynamo")
    add("--replay", action="append", default=[], metavar="URL", help="where workers replay events, in the same form")
    add("--model", help="name of the model as frontends know it; needed with --events")
    add("--block-size", type=int, help="tokens a block; needed with --events")
    add("--ranks", type=int, default=1, help="data-parallel ranks of a worker (default %(default)s)")
    add("--token-file", help="file of the bearer token for Conductor")
    add("--timeout", type=float, default=0.2, help="seconds to wait for an answer (default %(default)s). Raise it if "
        "Conductor is far away; after it a request is routed by load alone")
    add("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"), help="as of Dynamo's programs "
        "(default %(default)s)")
    args = parser.parse_args()
    if args.events and not (args.model and args.block_size):
        parser.error("--events needs --model and --block-size")
    if os.environ.get("DYN_TCP_TLS_CERT_PATH"):
        parser.error("DYN_TCP_TLS_CERT_PATH is set, but the bridge has no TLS for the request plane")
    return args


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(run(arguments()))
