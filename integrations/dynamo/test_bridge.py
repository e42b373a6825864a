"""Dynamo's frontend and two mock engines, with Conductor and the bridge: all real programs but for the GPU.

CONDUCTOR_BINARY names the server, else bin/conductor is taken. Without it or without Dynamo's wheels the tests
are skipped; `make dynamo-bridge` installs and builds both.
"""

import http.client
import importlib.util
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

HERE = pathlib.Path(__file__).parent
CONDUCTOR = pathlib.Path(os.environ.get("CONDUCTOR_BINARY", HERE.parent.parent / "bin" / "conductor"))
BLOCK, MODEL, PREFIXES = 16, "tiny", 20


def missing():
    try:
        absent = [name for name in ("aiohttp", "dynamo.runtime", "dynamo.frontend", "dynamo.mocker")
                  if not importlib.util.find_spec(name)]
    except ModuleNotFoundError:
        absent = ["dynamo"]
    return absent + ([] if CONDUCTOR.exists() else [str(CONDUCTOR)])


pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not here: {', '.join(missing())}")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def until(what, check, seconds=60):
    """until waits for a check to return something true, and returns it."""
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            if found := check():
                return found
        except (OSError, http.client.HTTPException) as error:  # the server is not there yet
            last = error
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen in {seconds} s; the last error was {last!r}")


def write_model(folder):
    """write_model writes the files of a model whose tokens are bytes: the mocker needs no weights."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    vocabulary = {name: number for number, name in enumerate(names)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 257, "hidden_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 128,
            "max_position_embeddings": 8192, "bos_token_id": 256, "eos_token_id": 256},
        "generation_config.json": {"eos_token_id": 256},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "model_max_length": 8192,
            "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}"},
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": vocabulary | {"<eos>": 256}, "merges": []}},
    }
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


class Fleet:
    """Fleet is the programs of one test run, and what they said."""

    def __init__(self, folder):
        self.folder, self.running = folder, {}
        self.ports = iter(free_ports(8))
        self.api, self.dynamo, self.own = (next(self.ports) for _ in range(3))
        self.engines = {f"127.0.0.{n}": (next(self.ports), next(self.ports)) for n in (1, 2)}
        self.workers = {}  # host of a mocker: its id in Dynamo
        write_model(folder / "model")

    def start(self, name, *command, **environment):
        settings = {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(self.folder / "discovery"),
                    "DYN_EVENT_PLANE": "zmq", "DYN_REQUEST_PLANE": "tcp", "HF_HUB_OFFLINE": "1"}
        with open(self.folder / f"{name}.log", "ab") as output:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command], stdout=output, stderr=output, cwd=self.folder,
                env=os.environ | settings | {"DYN_TCP_RPC_HOST": "127.0.0.1"} | environment)

    def stop(self, name):
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_conductor(self):
        self.start("conductor", CONDUCTOR, "serve", "--listen", f"127.0.0.1:{self.dynamo}=dynamo",
                   "--listen", f"127.0.0.1:{self.own}=conductor")

    def start_mocker(self, host):
        events, replay = self.engines[host]
        self.start(f"mocker-{host}", sys.executable, "-m", "dynamo.mocker", "--model-path", "model", "--model-name", MODEL,
                   "--block-size", BLOCK, "--num-gpu-blocks-override", 4000, "--kv-bytes-per-token", 64,
                   "--speedup-ratio", 100, "--zmq-kv-events-ports", events, "--zmq-replay-ports", replay,
                   DYN_TCP_RPC_HOST=host)

    def start_bridge(self):
        urls = [part for host, (events, replay) in self.engines.items() for part in
                ("--events", f"{host}=tcp://127.0.0.1:{events}", "--replay", f"{host}=tcp://127.0.0.1:{replay}")]
        self.start("bridge", sys.executable, HERE / "conductor_bridge.py", "--conductor", f"http://127.0.0.1:{self.dynamo}",
                   "--model", MODEL, "--block-size", BLOCK, *urls)

    def registered(self, *states):
        """registered returns the ids of the workers in Conductor, of those in one of the states if any is named."""
        workers = get(f"http://127.0.0.1:{self.dynamo}/workers")
        return {worker["instance_id"] for worker in workers
                if not states or all(listener["state"] in states for listener in worker["listeners"].values())}

    def ask(self, prompt, worker=None):
        """ask has a prompt completed, and returns who did it and what share of it the router thought to be cached."""
        extra = {"extra_fields": ["worker_id", "timing"]} | ({"backend_instance_id": worker} if worker else {})
        answer = post(f"http://127.0.0.1:{self.api}/v1/completions",
                      {"model": MODEL, "prompt": prompt, "max_tokens": 2, "nvext": extra})["nvext"]
        return answer["worker_id"]["decode_worker_id"], answer["timing"]["kv_hit_rate"]

    def holders(self, prompt):
        """holders returns what Conductor says about a prompt: the blocks that each worker has."""
        from dynamo.llm import compute_block_hash_for_seq

        vocabulary = json.loads((self.folder / "model" / "tokenizer.json").read_text())["model"]["vocab"]
        hashes = compute_block_hash_for_seq([vocabulary[letter] for letter in prompt], BLOCK)
        found = post(f"http://127.0.0.1:{self.dynamo}/query_tiered_by_hash", {"model_name": MODEL, "block_hashes": hashes})
        return {worker["worker_id"]: blocks for worker, blocks in found["tiered"]["device"]["scores"]}


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def prompts(seed):
    letters = random.Random(seed)
    return ["".join(letters.choices("abcdefghijklmnop", k=20 * BLOCK)) for _ in range(PREFIXES)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.start_conductor()
        for host in fleet.engines:
            fleet.start_mocker(host)
        fleet.start("frontend", sys.executable, "-m", "dynamo.frontend", "--router-mode", "kv", "--use-remote-indexer",
                    "--http-host", "127.0.0.1", "--http-port", fleet.api)
        until("a model at the frontend", lambda: get(f"http://127.0.0.1:{fleet.api}/v1/models")["data"])
        yield fleet
    finally:
        for name in list(fleet.running):
            fleet.stop(name)
        for log in sorted(fleet.folder.glob("*.log")):  # pytest shows it if a test failed
            print(f"== {log.name}", *log.read_text(errors="replace").splitlines()[-15:], sep="\n")


def test_without_a_bridge_requests_fail(fleet):
    with pytest.raises(urllib.error.HTTPError) as refused:
        fleet.ask("a" * 100)
    assert refused.value.code == 500
    assert "No workers available for endpoint dynamo/backend/kv_indexer_query" in (fleet.folder / "frontend.log").read_text()


def test_requests_go_where_conductor_says(fleet):
    fleet.start_bridge()
    ids = until("both workers in Conductor", lambda: len(both := fleet.registered("synced")) == 2 and sorted(both))
    until("an answer", lambda: fleet.ask("b" * 100))
    for number, prompt in enumerate(prompts(1)):  # by turns, so that the router's own choice has no part in it
        assert fleet.ask(prompt, ids[number % 2])[0] == ids[number % 2]
    routed = 0
    for number, prompt in enumerate(prompts(1)):
        held = until("20 blocks", lambda: 20 in (blocks := fleet.holders(prompt)).values() and blocks)
        assert held == {ids[number % 2]: 20}
        worker, share = fleet.ask(prompt + " and a tail")
        assert share > 0.9
        routed += worker in held
    print(f"{routed} of {PREFIXES} requests went to the worker that Conductor names")
    assert routed == PREFIXES


def test_without_conductor_load_decides(fleet):
    fleet.stop("conductor")
    served = [fleet.ask(prompt + " and a tail") for prompt in prompts(1)]
    assert {share for _, share in served} == {0.0}
    fleet.start_conductor()  # it remembers nothing: the bridge registers again, and the engines replay
    until("both workers in Conductor", lambda: len(fleet.registered("synced")) == 2)
    for prompt in prompts(1):
        held = until("20 blocks", lambda: 20 in (blocks := fleet.holders(prompt)).values() and blocks)
        worker, share = fleet.ask(prompt + " and a tail")
        assert held.get(worker) and share > 0.9


def test_workers_come_and_go(fleet):
    host = list(fleet.engines)[1]
    before = until("both workers in Conductor", lambda: len(both := fleet.registered("synced")) == 2 and both)
    fleet.stop(f"mocker-{host}")
    until("one worker less", lambda: len(fleet.registered()) == 1)
    assert {fleet.ask(prompt)[0] for prompt in prompts(2)} == fleet.registered()
    fleet.start_mocker(host)
    after = until("a new worker", lambda: len(both := fleet.registered("synced")) == 2 and both)
    (new,) = after - before
    prompt = prompts(3)[0]
    until("the new worker at the frontend", lambda: fleet.ask(prompt, new)[0] == new)
    until("20 blocks", lambda: fleet.holders(prompt).get(new) == 20)
    assert fleet.ask(prompt + " and a tail")[0] == new


def test_the_bridge_ends_without_failed_requests(fleet):
    fleet.start("second", *fleet.running["bridge"].args)
    until("the second bridge", lambda: "answers from" in (fleet.folder / "second.log").read_text())
    first = fleet.running["bridge"]
    first.terminate()
    while first.poll() is None:
        fleet.ask("c" * 100)
    assert first.returncode == 0
    for _ in range(10):
        fleet.ask("c" * 100)
