"""Writes errors.json and exchanges.json beside itself: requests and answers of the
dialect as bytes, packed here and not by what is tested. Text beside them says what the
bytes are. Exchanges are there in JSON too, where both forms mean the same; what is
refused in JSON is in make_json.py."""
import hashlib, json, pathlib, struct


class Raw(bytes):
    """Bytes that are packed already."""


class Bin(bytes):
    """A bin, which other bytes are too; its repr is shorter."""


class Pairs(list):
    """A map whose keys may repeat or be anything."""


class Wide(int):
    """An integer in more bytes than it needs."""

    def __new__(cls, v, tag):
        self = super().__new__(cls, v)
        self.packed = bytes([tag]) + v.to_bytes(8, "big")
        return self


def length(n, fixed, most, one, two):
    if n <= most:
        return bytes([fixed | n])
    if one and n <= 0xFF:
        return bytes([one, n])
    if n <= 0xFFFF:
        return struct.pack(">BH", two, n)
    return struct.pack(">BI", two + 1, n)


def pack(v):
    if isinstance(v, Raw):
        return bytes(v)
    if isinstance(v, Wide):
        return v.packed
    if v is None:
        return b"\xc0"
    if isinstance(v, bool):
        return b"\xc3" if v else b"\xc2"
    if isinstance(v, float):
        return struct.pack(">Bd", 0xCB, v)
    if isinstance(v, int):
        for low, high, form in (
            (-32, -1, ">b"), (0, 0x7F, ">B"),
        ):
            if low <= v <= high:
                return struct.pack(form, v)
        for tag, bits in ((0xCC, 8), (0xCD, 16), (0xCE, 32), (0xCF, 64)):
            if 0 <= v < 1 << bits:
                return bytes([tag]) + v.to_bytes(bits // 8, "big")
        for tag, bits in ((0xD0, 8), (0xD1, 16), (0xD2, 32), (0xD3, 64)):
            if v >= -(1 << (bits - 1)):
                return bytes([tag]) + v.to_bytes(bits // 8, "big", signed=True)
    if isinstance(v, str):
        s = v.encode()
        return length(len(s), 0xA0, 31, 0xD9, 0xDA) + s
    if isinstance(v, (bytes, Bin)):
        return length(len(v), 0, -1, 0xC4, 0xC5) + bytes(v)
    if isinstance(v, Pairs):
        return length(len(v), 0x80, 15, 0, 0xDE) + b"".join(pack(k) + pack(x) for k, x in v)
    if isinstance(v, dict):
        return pack(Pairs(v.items()))
    if isinstance(v, (list, tuple)):
        return length(len(v), 0x90, 15, 0, 0xDC) + b"".join(map(pack, v))
    raise TypeError(v)


def say(v):
    text = "bytes " + v.hex() if isinstance(v, Raw) else repr(v)
    return text if len(text) < 400 else text[:400] + " ..."


def step(request, body, status, answer, **more):
    s = {"request": request, "_body": body, "_answer": answer}
    if body is not None:
        s |= {"says": say(body), "body": pack(body).hex()}
    return s | {"status": status, "means": say(answer), "answer": pack(answer).hex()} | more


def error(text, reason=None, field=None, index=None):
    e = {"error": text}
    for name, v in (("reason", reason), ("field", field), ("index", index)):
        if v is not None:
            e[name] = v
    return e


def as_json(v):
    """A value in compact JSON; None where JSON cannot say it."""
    if isinstance(v, Pairs):
        return "{" + ",".join(as_json(k) + ":" + as_json(x) for k, x in v) + "}"
    try:
        return json.dumps(v, separators=(",", ":"), ensure_ascii=False)
    except TypeError:
        return None


def answer_text(request, status, answer):
    """An answer in JSON: success ends in a newline but for the list of services, and an
    error without a reason is a line of text."""
    if status == 200:
        return as_json(answer) + ("" if request == "GET /services" else "\n")
    return as_json(answer) if "reason" in answer else answer["error"] + "\n"


def in_json(s):
    """Adds the JSON of a step."""
    if "request" not in s or s.get("packed_only"):
        return s
    body = as_json(s["_body"])
    if body is not None:
        s |= {"json_answer": answer_text(s["request"], s["status"], s["_answer"])}
        if s["_body"] is not None:
            s |= {"json_body": body}
    return s


def clean(v):
    """A row without what is not written."""
    if isinstance(v, dict):
        return {k: clean(x) for k, x in v.items() if k[0] != "_"}
    return list(map(clean, v)) if isinstance(v, list) else v


def write(name, rows):
    text = "[\n" + ",\n".join(json.dumps(clean(r)) for r in rows) + "\n]\n"
    (pathlib.Path(__file__).parent / name).write_text(text)


PROFILE = {"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": "0", "index_projection": "low64_be"}
SOURCE = {"endpoint": "tcp://e:1", "type": "vLLM", "modelname": "m", "instance_id": "1", "block_size": 16, "dp_rank": 0}
QUERY = {"model": "m", "block_size": 16, "token_ids": [1, 2, 3]}
HASHES = {"model": "m", "block_size": 16, "seq_hashes": [1]}


def but(base, **fields):
    return base | fields


def without(base, *names):
    return {k: v for k, v in base.items() if k not in names}


SCHEME = 'endpoint "nowhere" has no scheme: want tcp://host:port or ipc://path'
errors = []


def refused(path, body, text, reason=None, field=None, index=None, status=400, **more):
    errors.append(step("POST " + path, body, status, error(text, reason, field, index), **more))


# Bodies as a whole, on every path that takes one.
for path in ("/register", "/unregister", "/query", "/query_by_hash"):
    refused(path, {}, "Content-Type must be application/msgpack", "unsupported_content_type", type="application/json")
    refused(path, {}, "Content-Type must be application/msgpack", "unsupported_content_type", type="")
    for broken in (b"\xc1", b"", b"\x81\xa1a", b"\x81\xc1\x01", b"\xdf\x00\x00\x00\x40\xa1a", b"\x91", b"\x81\xa1a\xda\x00\x05xx", b"\xd9"):
        refused(path, Raw(broken), "Invalid msgpack object", "invalid_msgpack")
    refused(path, Raw(b"\x81\xa1a" + b"\x91" * 100 + b"\xc0"), "Invalid msgpack object", "invalid_msgpack")
    for other in ([], [1, {}], Raw(b"\xc0"), "text", 7, Raw(b"\xc7\x01\x05\x00"), b"\x80"):
        refused(path, other, "request body must be a msgpack map", "invalid_msgpack")
    refused(path, Pairs([(7, 1)]), "map keys must be strings", "invalid_msgpack")
    refused(path, Pairs([("model", 7), (b"block_size", 1)]), "map keys must be strings", "invalid_msgpack")
    refused(path, {"python_hash_sead": 1}, "unsupported request field: python_hash_sead", "unknown_field", "python_hash_sead")
    refused(path, {"a%d" % i: i for i in range(65)}, "request body has too many fields", "invalid_msgpack")

# /register
R = "/register"
for name in ("endpoint", "type", "modelname", "instance_id"):
    refused(R, without(SOURCE, name), name + " is required", "missing", name)
    for wrong in (7, None, b"x", []):
        refused(R, but(SOURCE, **{name: wrong}), name + " must be a string", "invalid_type", name)
    refused(R, but(SOURCE, **{name: ""}), name + " must not be empty", "invalid_value", name)
refused(R, but(SOURCE, instance_id=Raw(b"\xa1\xff")), "instance_id must be valid UTF-8", "invalid_value", "instance_id")
refused(R, without(SOURCE, "block_size"), "block_size is required", "missing", "block_size")
for wrong in (16.0, "16", None, True, 1 << 63):
    refused(R, but(SOURCE, block_size=wrong), "block_size must be an integer", "invalid_type", "block_size")
for wrong in (0, -1, -(1 << 63)):
    refused(R, but(SOURCE, block_size=wrong), "block_size must be greater than zero", "out_of_range", "block_size")
refused(R, but(SOURCE, block_size=1 << 31), "invalid service registration: block_size must be at most 2147483647", "invalid_registration")
for name in ("replay_endpoint", "lora_name", "tenant_id"):
    for wrong in (None, 1, False):
        refused(R, but(SOURCE, **{name: wrong}), name + " must be a string", "invalid_type", name)
for wrong in ([0, 1], "0", False, 0.0):
    refused(R, but(SOURCE, cache_group=wrong), "cache_group must be an integer or null", "invalid_type", "cache_group")
for wrong in (1, -1):
    refused(R, but(SOURCE, cache_group=wrong), "only cache group zero is supported", "unsupported", "cache_group")
for wrong in ([], "x", 0, False):
    refused(R, but(SOURCE, hash_profile=wrong), "hash_profile must be a map", "invalid_type", "hash_profile")


def profile(**fields):
    return but(SOURCE, hash_profile=PROFILE | fields)


refused(R, profile(root_digest="00"), "unsupported request field: root_digest", "unknown_field", "root_digest")
refused(R, profile(python_hash_sead="0"), "unsupported request field: python_hash_sead", "unknown_field", "python_hash_sead")
refused(R, but(SOURCE, hash_profile=Pairs([(1, 2)])), "map keys must be strings", "invalid_msgpack")
for name in PROFILE:
    refused(R, but(SOURCE, hash_profile=without(PROFILE, name)), name + " is required", "missing", name)
    for wrong in (0, None, True, [], {}):
        refused(R, profile(**{name: wrong}), name + " must be a string", "invalid_type", name)
    refused(R, profile(**{name: ""}), name + " must not be empty", "invalid_value", name)
for wrong in ("md5", "sha512", "xxhash", "SHA256"):
    refused(R, profile(algorithm=wrong), "unsupported hash algorithm: " + wrong, "invalid_value", "algorithm")
refused(R, profile(algorithm="md5", strategy="x"), "unsupported hash algorithm: md5", "invalid_value", "algorithm")
refused(R, profile(strategy="vLLM_v1", index_projection="x"), "unsupported hash strategy: vLLM_v1", "invalid_value", "strategy")
refused(R, profile(index_projection="low64", python_hash_seed="x"), "unsupported index projection: low64", "invalid_value", "index_projection")
for wrong in ("-1", "+1", " 0", "0 ", "0\n", "1.0", "Random", "\u0661", "not-a-seed"):
    refused(R, profile(python_hash_seed=wrong), 'python_hash_seed must be "random" or ASCII decimal text in 0..4294967295', "invalid_value", "python_hash_seed")
for wrong in ("4294967296", "99999999999999999999999"):
    refused(R, profile(python_hash_seed=wrong), "python_hash_seed must be in range 0..4294967295", "invalid_value", "python_hash_seed")
refused(R, profile(python_hash_seed=Raw(b"\xa1\xff")), "python_hash_seed must be valid UTF-8", "invalid_value", "python_hash_seed")
# Where ours knows more, the dialect does not.
for wrong in ("xxhash_cbor", "sha256_raw"):
    refused(R, profile(algorithm=wrong), "unsupported hash algorithm: " + wrong, "invalid_value", "algorithm")
refused(R, profile(strategy="sglang"), "unsupported hash strategy: sglang", "invalid_value", "strategy")
refused(R, profile(python_hash_seed="vllm-none-hash"), 'python_hash_seed must be "random" or ASCII decimal text in 0..4294967295', "invalid_value", "python_hash_seed")
refused(R, profile(extra_keys="tagged"), "unsupported request field: extra_keys", "unknown_field", "extra_keys")
for wrong in ("VLLM", "vllm", "mooncake", "TensorRT"):
    refused(R, but(SOURCE, type=wrong), "type must be vLLM or Mooncake", "invalid_value", "type")
refused(R, without(SOURCE, "dp_rank"), "dp_rank is required", "missing", "dp_rank")
for wrong in (0.0, "0", None, 1 << 63):
    refused(R, but(SOURCE, dp_rank=wrong), "dp_rank must be an integer", "invalid_type", "dp_rank")
for wrong in (-1, 1 << 31, (1 << 63) - 1):
    refused(R, but(SOURCE, dp_rank=wrong), "dp_rank must be a non-negative int", "out_of_range", "dp_rank")

# Several faults at once: the order of the checks, whatever that on the wire.
order = [("endpoint", "endpoint is required"), ("type", "type is required"), ("modelname", "modelname is required"),
         ("instance_id", "instance_id is required"), ("block_size", "block_size is required")]
for i in range(len(order)):
    gone = [n for n, _ in order[i:]] + ["dp_rank"]
    refused(R, without(SOURCE, *gone) | {"lora_name": 1}, order[i][1], "missing", order[i][0])
wrong = {"dp_rank": -1, "type": "x", "hash_profile": 1, "cache_group": 1, "tenant_id": 1, "lora_name": 1, "replay_endpoint": 1}
for name, text, reason in (
    ("replay_endpoint", "replay_endpoint must be a string", "invalid_type"), ("lora_name", "lora_name must be a string", "invalid_type"),
    ("tenant_id", "tenant_id must be a string", "invalid_type"), ("cache_group", "only cache group zero is supported", "unsupported"),
    ("hash_profile", "hash_profile must be a map", "invalid_type"), ("type", "type must be vLLM or Mooncake", "invalid_value"),
    ("dp_rank", "dp_rank must be a non-negative int", "out_of_range"),
):
    refused(R, SOURCE | wrong, text, reason, name)
    del wrong[name]
refused(R, Pairs([("endpoint", 1), ("x", 1)]), "unsupported request field: x", "unknown_field", "x")
refused(R, Pairs([("endpoint", 1)] + list(SOURCE.items())), "endpoint must be a string", "invalid_type", "endpoint")
refused(R, but(SOURCE, endpoint="nowhere"),
        "Failed to subscribe: failed to start ZMQ client: initial connection failed: failed to connect to nowhere: " + SCHEME, status=500)
refused(R, but(SOURCE, replay_endpoint="nowhere"), "invalid service registration: replay_endpoint: " + SCHEME, "invalid_registration")

# /unregister
U, KEY = "/unregister", {"instance_id": "1", "dp_rank": 0}
refused(U, without(KEY, "instance_id"), "instance_id is required", "missing", "instance_id")
refused(U, but(KEY, instance_id=1), "instance_id must be a string", "invalid_type", "instance_id")
refused(U, but(KEY, instance_id=""), "instance_id must not be empty", "invalid_value", "instance_id")
refused(U, but(KEY, tenant_id=None), "tenant_id must be a string", "invalid_type", "tenant_id")
refused(U, without(KEY, "dp_rank"), "dp_rank is required", "missing", "dp_rank")
for wrong in ("0", -1, 0.0, None, 1 << 31, 1 << 63):
    refused(U, but(KEY, dp_rank=wrong), "dp_rank must be a non-negative int", "invalid_value", "dp_rank")
refused(U, KEY, "service not found: 1|default|0", status=404)
refused(U, but(KEY, tenant_id="t", dp_rank=3), "service not found: 1|t|3", status=404)

# /query and /query_by_hash
for path, base, prompt in (("/query", QUERY, "token_ids"), ("/query_by_hash", HASHES, "seq_hashes")):
    refused(path, without(base, "model"), "model is required", "missing", "model")
    refused(path, but(base, model=7), "model must be a string", "invalid_type", "model")
    refused(path, but(base, model=""), "model must not be empty", "invalid_value", "model")
    refused(path, without(base, "block_size"), "block_size is required", "missing", "block_size")
    for wrong in (16.5, "16", None):
        refused(path, but(base, block_size=wrong), "block_size must be an integer", "invalid_type", "block_size")
    for wrong in (0, -16, 1 << 63):
        refused(path, but(base, block_size=wrong), "block_size must be a positive integer", "out_of_range", "block_size")
    refused(path, without(base, prompt), prompt + " is required", "missing", prompt)
    for wrong in (None, "1", 1, {}):
        refused(path, but(base, **{prompt: wrong}), prompt + " must be a bin or an array", "invalid_type", prompt)
    for wrong in ("1", 1.0, None, [1], True):
        refused(path, but(base, **{prompt: [1, wrong]}), prompt + " element must be an integer", "invalid_type", prompt, 1)
    refused(path, but(base, **{prompt: [1] * 65}), prompt + " has 65 elements, limits.max_tokens allows 64", "out_of_range", prompt, 64)
    for name in ("tenant_id", "lora_name", "instance_id"):
        for wrong in (None, False, 3):
            refused(path, but(base, **{name: wrong}), name + " must be a string", "invalid_type", name)
    for wrong in (42, b"x", []):
        refused(path, but(base, cache_salt=wrong), "cache_salt must be a string or null", "invalid_type", "cache_salt")
    for name in ("python_hash_seed", "root_digest", "lora_id", "modelname"):
        refused(path, but(base, **{name: "x"}), "unsupported request field: " + name, "unknown_field", name)
    # In the order of the wire, what is missing last and in its own order.
    refused(path, Pairs([("block_size", 0), ("model", 7)]), "block_size must be a positive integer", "out_of_range", "block_size")
    refused(path, Pairs([("model", 7), ("x", 1)]), "model must be a string", "invalid_type", "model")
    refused(path, Pairs([("x", 1), ("model", 7)]), "unsupported request field: x", "unknown_field", "x")
    refused(path, {}, "model is required", "missing", "model")
    refused(path, {"model": "m"}, "block_size is required", "missing", "block_size")
    refused(path, {"cache_salt": 1}, "cache_salt must be a string or null", "invalid_type", "cache_salt")
    refused(path, Pairs([("model", 7)] + list(base.items())), "model must be a string", "invalid_type", "model")
for wrong in (1 << 31, -(1 << 31) - 1, 1 << 63):
    refused("/query", but(QUERY, token_ids=[1, 2, wrong]), "token_ids element is outside the int32 range", "out_of_range", "token_ids", 2)
refused("/query", but(QUERY, token_ids=b"12345"), "token_ids bin size must be a multiple of 4", "invalid_value", "token_ids")
refused("/query", but(QUERY, token_ids=b"1234" * 65), "token_ids has 65 elements, limits.max_tokens allows 64", "out_of_range", "token_ids", 64)
refused("/query_by_hash", but(HASHES, seq_hashes=b"1234"), "seq_hashes bin size must be a multiple of 8", "invalid_value", "seq_hashes")

# Methods and paths.
for request, status, text in (
    [("GET " + p, 405, "Method not allowed") for p in ("/register", "/unregister", "/query", "/query_by_hash")]
    + [("POST " + p, 405, "Method not allowed") for p in ("/services", "/global_view", "/health")]
    + [("PUT /query", 404, "no such path: /query"), ("DELETE /services", 404, "no such path: /services"),
       ("POST /v2/query", 404, "no such path: /v2/query"), ("GET /nothing", 404, "no such path: /nothing"),
       ("POST /query/", 404, "no such path: /query/")]
):
    errors.append(step(request, None, status, error(text)))
write("errors.json", errors)

# Exchanges that succeed, and those a state refuses: several scripts, each on a server of its own.
scripts = []


def script(name, *steps):
    scripts.append({"name": name, "steps": [in_json(s) for s in steps]})


def stored(endpoint, medium, first, count, **more):
    return {"stored": {"endpoint": endpoint, "medium": medium, "first": first, "count": count} | more}


def removed(endpoint, medium, first, count):
    return {"removed": {"endpoint": endpoint, "medium": medium, "first": first, "count": count}}


def register(body, instance=None, **more):
    return step("POST /register", body, 200, {"status": "registered successfully", "instance_id": instance or dict(body)["instance_id"]}, **more)


def conflict(body, text):
    return step("POST /register", body, 400, error(text, "invalid_registration"))


def unregister(body, key):
    return step("POST /unregister", body, 200, {"status": "unregistered successfully", "removed_instances": [key]})


def boundaries(gpu, cpu, disk):
    return {"gpu": gpu, "cpu": cpu, "disk": disk}


def row(**ranks):
    """A row, of what each rank reaches: r0=(gpu, cpu, disk)."""
    by = {name[1:]: boundaries(*at) for name, at in ranks.items()}
    best = boundaries(*(max(at[i] for at in ranks.values()) for i in range(3)))
    return {"longest_matched": best["disk"], "dp": {r: b["gpu"] for r, b in by.items()}, "rank_matches": by} | best


def query(body, path="/query", **rows):
    return step("POST " + path, body, 200, {"instances": {name.lstrip("_"): r for name, r in rows.items()}})


def tokens(n):
    return list(range(1, n + 1))


def ask(n, **more):
    return {"model": "m", "block_size": 16, "token_ids": tokens(n)} | more


def source(instance, rank=0, **more):
    return SOURCE | {"endpoint": "tcp://e%s:%d" % (instance, 1 + rank), "instance_id": instance, "dp_rank": rank} | more


POOL = SOURCE | {"endpoint": "tcp://pool:1", "type": "Mooncake", "instance_id": "pool"}


def resolved(profile):
    """A profile as it is shown: with the hash of its seed, encoded as the algorithm has it."""
    if profile is None:
        return None
    seed = profile["python_hash_seed"].encode()
    encoded = {
        "sha256_cbor": bytes([0x60 | len(seed)]) + seed,
        "sha256": b"\x80\x05\x95" + struct.pack("<Q", len(seed) + 4) + bytes([0x8C, len(seed)]) + seed + b"\x94.",
    }[profile["algorithm"]]
    return {"strategy": "vllm_v1", "algorithm": profile["algorithm"], "python_hash_seed": profile["python_hash_seed"],
            "root_digest": hashlib.sha256(encoded).hexdigest(), "index_projection": "low64_be"}


def service(body):
    d = {"replay_endpoint": "", "lora_name": "", "tenant_id": "default"} | body
    return {"Endpoint": d["endpoint"], "ReplayEndpoint": d["replay_endpoint"], "Type": d["type"], "ModelName": d["modelname"],
            "LoraName": d["lora_name"], "TenantID": d["tenant_id"] or "default", "InstanceID": d["instance_id"], "BlockSize": d["block_size"],
            "DPRank": d["dp_rank"], "CacheGroup": None, "HashProfile": resolved(d.get("hash_profile"))}


def services(*bodies):
    return step("GET /services", None, 200, {"count": len(bodies), "services": [service(b) for b in bodies]})


def context(instances, blocks=0, model="m", lora="", size=16, tenant="default", profile=None):
    return {"model_name": model, "lora_name": lora, "block_size": size, "tenant_id": tenant, "prefix_count": blocks,
            "hash_profile": resolved(profile), "instances": instances}


def view(*contexts):
    return step("GET /global_view", None, 200, {"context_count": len(contexts), "contexts": list(contexts)})


script("nothing", services(), view(), query(ask(16)), step("GET /health", None, 200, {"status": "ok", "version": "test"}))

one = source("1")
script("registrations and their ends",
       register(one), register(one), services(one), view(context({"1": [0]})),
       register(one | {"hash_profile": None, "cache_group": None, "lora_name": "", "tenant_id": "", "replay_endpoint": ""}),
       register(one | {"cache_group": 0}),
       conflict(one | {"modelname": "other"}, "conflicting registration for service key: 1|default|0"),
       conflict(one | {"endpoint": "tcp://other:1"}, "conflicting registration for service key: 1|default|0"),
       conflict(one | {"replay_endpoint": "tcp://other:1"}, "conflicting registration for service key: 1|default|0"),
       conflict(source("2", endpoint=one["endpoint"]), "conflicting active registration for endpoint: tcp://e1:1"),
       conflict(POOL | {"endpoint": one["endpoint"]}, "conflicting active registration for endpoint: tcp://e1:1"),
       services(one), view(context({"1": [0]})),
       register(source("1", 1)),
       query(ask(0), _1=row(r0=(0, 0, 0), r1=(0, 0, 0))),
       view(context({"1": [0, 1]})),
       unregister({"instance_id": "1", "dp_rank": 0}, "1|default|0"),
       query(ask(0), _1=row(r1=(0, 0, 0))),
       step("POST /unregister", {"instance_id": "1", "dp_rank": 0}, 404, error("service not found: 1|default|0")),
       unregister({"instance_id": "1", "dp_rank": 1, "tenant_id": ""}, "1|default|1"),
       query(ask(0)), services(),
       register(Pairs([("endpoint", "tcp://first:1")] + list(one.items()) + [("instance_id", "last")]), "1", packed_only=True),
       services(one | {"endpoint": "tcp://first:1"}) | {"packed_only": True})

bound = source("1", endpoint="bind:tcp://*:5557")
script("tenants, adapters, types and wide integers",
       register(source("10", type="SGLang")), register(source("2", type="Standard", lora_name="l")), register(POOL),
       register(bound | {"instance_id": "b1"}), register(bound | {"instance_id": "b2"}),
       register(source("1", 2, tenant_id="t", block_size=Wide(16, 0xD3), dp_rank=Wide(2, 0xCF))),
       services(source("10", type="SGLang"), source("1", 2, tenant_id="t"), source("2", type="Standard", lora_name="l"),
                bound | {"instance_id": "b1"}, bound | {"instance_id": "b2"}, POOL),
       view(context({"10": [0], "b1": [0], "b2": [0]}), context({"2": [0]}, lora="l"), context({"1": [2]}, tenant="t")),
       query(ask(16, tenant_id="t"), _1=row(r2=(0, 0, 0))),
       query(ask(16, lora_name="l"), _2=row(r0=(0, 0, 0))),
       query(ask(16, block_size=32)), query(ask(16, model="other")), query(ask(16, tenant_id="other")), query(ask(16, lora_name="other")),
       query(ask(16, lora_name=Raw(b"\xa1\xff"))), query(ask(16, cache_salt=Raw(b"\xa1\xff"))), query(ask(16, block_size=(1 << 63) - 1)),
       unregister({"instance_id": "1", "dp_rank": 2, "tenant_id": "t"}, "1|t|2"))

two = source("2", 1)
full = (row(r0=(32, 48, 48)), row(r1=(0, 48, 48)))
wide = Raw(b"\xdd" + (48).to_bytes(4, "big") + b"".join(b"\xd2" + i.to_bytes(4, "big") for i in tokens(48)))
little = Bin(b"".join(struct.pack("<i", i) for i in tokens(48)))
script("a prompt on devices and in a pool",
       register(source("1")), register(two), register(POOL),
       stored("tcp://e1:1", "GPU", 0, 2), stored("tcp://pool:1", "CPU", 0, 3), stored("tcp://pool:1", "DISK", 0, 3),
       query(ask(48), _1=full[0], _2=full[1]),
       query(ask(63), _1=full[0], _2=full[1]),
       query(ask(0) | {"token_ids": little}, _1=full[0], _2=full[1]),
       query(ask(0) | {"token_ids": wide}, _1=full[0], _2=full[1]),
       query(ask(48, tenant_id="", cache_salt=None, lora_name=""), _1=full[0], _2=full[1]),
       query(ask(48, cache_salt=""), _1=full[0], _2=full[1]),
       query(ask(48, instance_id="1"), _1=full[0]), query(ask(48, instance_id="2"), _2=full[1]),
       query(ask(48, instance_id="missing")), query(ask(48, instance_id="")), query(ask(48, instance_id="pool")),
       query(Pairs([("model", "other"), ("token_ids", [5])] + list(ask(48).items())), _1=full[0], _2=full[1]),
       query(ask(0) | {"token_ids": [-(1 << 31), (1 << 31) - 1] * 8}, _1=row(r0=(0, 0, 0)), _2=row(r1=(0, 0, 0))),
       query(ask(15), _1=row(r0=(0, 0, 0)), _2=row(r1=(0, 0, 0))),
       query(ask(48, cache_salt="pepper"), _1=row(r0=(0, 0, 0)), _2=row(r1=(0, 0, 0))),
       query(Raw(pack(ask(48)) + b"\xc1 and more"), _1=full[0], _2=full[1]),
       {"hashes": 3, **query({"model": "m", "block_size": 16, "seq_hashes": []}, "/query_by_hash", _1=full[0], _2=full[1])},
       view(context({"1": [0], "2": [1]}, 3)),
       unregister({"instance_id": "pool", "dp_rank": 0}, "pool|default|0"),
       query(ask(48), _1=row(r0=(32, 32, 32)), _2=row(r1=(0, 0, 0))))

script("four blocks, one tier after the other",
       register(source("1")), register(POOL), stored("tcp://e1:1", "GPU", 0, 2), stored("tcp://pool:1", "CPU", 0, 3), removed("tcp://pool:1", "CPU", 0, 2),
       stored("tcp://pool:1", "DISK", 0, 4), removed("tcp://pool:1", "DISK", 0, 3),
       query(ask(64), _1=row(r0=(32, 48, 64))))

script("the cursor never goes back up",
       register(source("1")), register(POOL), stored("tcp://e1:1", "GPU", 0, 1), stored("tcp://pool:1", "DISK", 0, 4),
       removed("tcp://pool:1", "DISK", 2, 1), removed("tcp://pool:1", "DISK", 0, 1),
       stored("tcp://pool:1", "CPU", 0, 3), removed("tcp://pool:1", "CPU", 0, 2),
       query(ask(64), _1=row(r0=(16, 16, 32))))

script("two ranks, tiers below both",
       register(source("1")), register(source("1", 1)), register(POOL),
       stored("tcp://e1:1", "GPU", 0, 2), stored("tcp://e1:2", "GPU", 0, 1),
       stored("tcp://pool:1", "CPU", 0, 3), removed("tcp://pool:1", "CPU", 0, 2),
       stored("tcp://pool:1", "DISK", 0, 4), removed("tcp://pool:1", "DISK", 0, 3),
       query(ask(64), _1=row(r0=(32, 48, 64), r1=(16, 16, 16))))

script("a hole ends a prefix",
       register(source("1")), stored("tcp://e1:1", "GPU", 0, 3), removed("tcp://e1:1", "GPU", 1, 1),
       query(ask(48), _1=row(r0=(16, 16, 16))), view(context({"1": [0]}, 2)))

script("disk alone",
       register(source("1")), register(POOL), stored("tcp://pool:1", "DISK", 0, 1), query(ask(16), _1=row(r0=(0, 0, 16))))

script("a salt is a namespace",
       register(source("1")), stored("tcp://e1:1", "GPU", 0, 2, salt="pepper"),
       query(ask(64, cache_salt="pepper"), _1=row(r0=(32, 32, 32))),
       query(ask(64), _1=row(r0=(0, 0, 0))), query(ask(64, cache_salt=""), _1=row(r0=(0, 0, 0))), query(ask(64, cache_salt=None), _1=row(r0=(0, 0, 0))),
       view(context({"1": [0]}, 2)))

KEY_CONFLICT = "conflicting registration for service key: 1|default|0"
ENGINE_CONFLICT = "failed to register prefix context: registration conflicts with the ContextKey hash profile"
POOL_CONFLICT = "failed to bind shared-cache profile: hash profile conflicts with the registered ContextKey profile"
zero = PROFILE
first, other_one = source("1", hash_profile=zero), source("2", hash_profile=zero)
script("a profile",
       register(first), register(first), services(first), view(context({"1": [0]}, profile=zero)),
       # Another engine hashes alike or does not come in, whichever field differs; this one has the key's own words.
       *[conflict(other_one | {"hash_profile": zero | wrong}, ENGINE_CONFLICT) for wrong in (
           {"python_hash_seed": "1"}, {"python_hash_seed": "00"}, {"python_hash_seed": "random"}, {"algorithm": "sha256"})],
       *[conflict(first | {"hash_profile": zero | wrong}, KEY_CONFLICT) for wrong in ({"python_hash_seed": "1"}, {"algorithm": "sha256"})],
       conflict(first | {"hash_profile": None}, KEY_CONFLICT), conflict(source("1"), KEY_CONFLICT),
       conflict(POOL | {"hash_profile": zero | {"python_hash_seed": "1"}}, POOL_CONFLICT),
       # The endpoint is looked at before the profile.
       conflict(other_one | {"endpoint": first["endpoint"], "hash_profile": zero | {"python_hash_seed": "1"}},
                "conflicting active registration for endpoint: tcp://e1:1"),
       services(first), view(context({"1": [0]}, profile=zero)),
       # The same, none, and others elsewhere.
       register(other_one), register(source("3")), register(POOL | {"hash_profile": zero}),
       register(source("4", hash_profile=zero | {"python_hash_seed": "00"}, lora_name="l")),
       register(source("5", hash_profile=zero | {"algorithm": "sha256"}, block_size=32)),
       services(first, other_one, source("3"), source("4", hash_profile=zero | {"python_hash_seed": "00"}, lora_name="l"),
                source("5", hash_profile=zero | {"algorithm": "sha256"}, block_size=32), POOL | {"hash_profile": zero}),
       view(context({"1": [0], "2": [0], "3": [0]}, profile=zero), context({"5": [0]}, size=32, profile=zero | {"algorithm": "sha256"}),
            context({"4": [0]}, lora="l", profile=zero | {"python_hash_seed": "00"})))

pickled = source("1", hash_profile=zero | {"algorithm": "sha256"})
script("a pickled profile",
       register(pickled), register(pickled), services(pickled), view(context({"1": [0]}, profile=pickled["hash_profile"])),
       conflict(other_one, ENGINE_CONFLICT), query(ask(0), _1=row(r0=(0, 0, 0))), query(ask(16), _1=row(r0=(0, 0, 0))))

eager = POOL | {"hash_profile": zero | {"python_hash_seed": "1"}}
script("a pool before its engines",
       register(eager), services(eager), view(), register(first), view(context({"1": [0]}, profile=zero)),
       conflict(POOL | {"endpoint": "tcp://pool:2", "instance_id": "late", "hash_profile": zero | {"python_hash_seed": "1"}}, POOL_CONFLICT),
       conflict(POOL, "conflicting registration for service key: pool|default|0"), services(first, eager))

# Where ours differs: the profile goes with its last registration, the reference keeps it until it ends.
script("a profile goes",
       register(first), unregister({"instance_id": "1", "dp_rank": 0}, "1|default|0"), view(),
       register(source("1", hash_profile=zero | {"python_hash_seed": "1"})), view(context({"1": [0]}, profile=zero | {"python_hash_seed": "1"})))
write("exchanges.json", scripts)
