"""Writes json_errors.json beside itself: what is refused in JSON, and where JSON is read or
checked in another way than msgpack, as text made here and not by what is tested."""
import json, pathlib

from make import HASHES, PROFILE, QUERY, SCHEME, SOURCE, answer_text, as_json, but, error, without

steps = []


def said(path, body, status, answer):
    steps.append({"request": "POST " + path, "json_body": body if isinstance(body, str) else as_json(body), "status": status,
                  "json_answer": answer if isinstance(answer, str) else answer_text("POST " + path, status, answer)})


def refused(path, body, message, reason=None, field=None, index=None, status=400):
    said(path, body, status, error(message, reason, field, index))


def raw(base, name, value):
    """The text of a body with one field as it stands."""
    rest = as_json(without(base, name))[1:-1]
    return "{" + rest + ("," if rest else "") + '"%s":%s}' % (name, value)


R, U, KEY = "/register", "/unregister", {"instance_id": "1", "dp_rank": 0}

# Bodies as a whole. Queries are exact, registrations let what follows them be.
broken = ["", " ", "{", '{"a"}', "{'model':1}", '{"model":}', '{"model":"m",}', '// why\n{"model":"m"}', '{"model":"m"/**/}', '{"model":NaN}', '{"model":+1}',
          '{"model":01}', '{"model":.5}', '{"model":"\t"}', '{"model":"\\x"}', "[]", "7", "null", '"text"', "true", "{]"]
for path in ("/query", "/query_by_hash"):
    for body in broken + ["{} {}", "{}1", "{},"]:
        said(path, body, 400, '{"error":"Invalid JSON object","reason":"invalid_json"}')
for path in (R, U):
    for body in broken:
        said(path, body, 400, "Invalid JSON\n")
    refused(path, '{"x":1} and more', "unsupported request field: x", "unknown_field", "x")
for path in (R, U, "/query", "/query_by_hash"):
    refused(path, {"python_hash_sead": 1}, "unsupported request field: python_hash_sead", "unknown_field", "python_hash_sead")
    refused(path, {"z": 1, "aa": 1, "Model": 1, "b": 1}, "unsupported request field: Model", "unknown_field", "Model")
    refused(path, {"z": 1, "\u00e9\"\\<\n": 1}, "unsupported request field: z", "unknown_field", "z")
    refused(path, {"\u00e9\"\\<&\n": 1}, "unsupported request field: \u00e9\"\\<&\n", "unknown_field", "\u00e9\"\\<&\n")
    refused(path, '{"\\u00e9\\ud83d\\ude00":1}', "unsupported request field: \u00e9\U0001f600", "unknown_field", "\u00e9\U0001f600")
    refused(path, {"a%d" % i: i for i in range(65)}, "an object has too many fields", "invalid_json")
deep = "[" * 63 + "]" * 63
refused("/query", raw(QUERY, "model", "[" + deep + "]"), "Invalid JSON object", "invalid_json")
refused("/query", raw(QUERY, "model", deep), "model must be a string", "invalid_type", "model")

# /register
for name in ("endpoint", "type", "modelname", "instance_id"):
    refused(R, without(SOURCE, name), name + " is required", "missing", name)
    for wrong in (7, None, 1.5, [], {}, True):
        refused(R, but(SOURCE, **{name: wrong}), name + " must be a string", "invalid_type", name)
    refused(R, but(SOURCE, **{name: ""}), name + " must not be empty", "invalid_value", name)
refused(R, without(SOURCE, "block_size"), "block_size is required", "missing", "block_size")
for wrong in ("16.0", "16e0", '"16"', "null", "true", str(1 << 63), str(1 << 64), str(-(1 << 63) - 1), "1e400"):
    refused(R, raw(SOURCE, "block_size", wrong), "block_size must be an integer", "invalid_type", "block_size")
for wrong in ("0", "-0", "-1", str(-(1 << 63))):
    refused(R, raw(SOURCE, "block_size", wrong), "block_size must be greater than zero", "out_of_range", "block_size")
refused(R, but(SOURCE, block_size=1 << 31), "invalid service registration: block_size must be at most 2147483647", "invalid_registration")
for name in ("replay_endpoint", "lora_name", "tenant_id"):
    for wrong in (None, 1, False):
        refused(R, but(SOURCE, **{name: wrong}), name + " must be a string", "invalid_type", name)
for wrong in ([0, 1], "0", False, 0.0):
    refused(R, but(SOURCE, cache_group=wrong), "cache_group must be an integer or null", "invalid_type", "cache_group")
refused(R, but(SOURCE, cache_group=1), "only cache group zero is supported", "unsupported", "cache_group")
for wrong in ([], "x", 0, False):
    refused(R, but(SOURCE, hash_profile=wrong), "hash_profile must be an object", "invalid_type", "hash_profile")
refused(R, but(SOURCE, hash_profile=PROFILE | {"z": 1, "root_digest": "00"}), "unsupported request field: root_digest", "unknown_field", "root_digest")
for name in PROFILE:
    refused(R, but(SOURCE, hash_profile=without(PROFILE, name)), name + " is required", "missing", name)
    refused(R, but(SOURCE, hash_profile=PROFILE | {name: 0}), name + " must be a string", "invalid_type", name)
    refused(R, but(SOURCE, hash_profile=PROFILE | {name: ""}), name + " must not be empty", "invalid_value", name)
refused(R, but(SOURCE, hash_profile=PROFILE | {"algorithm": "md5"}), "unsupported hash algorithm: md5", "invalid_value", "algorithm")
refused(R, but(SOURCE, hash_profile=PROFILE | {"python_hash_seed": "-1"}),
        'python_hash_seed must be "random" or ASCII decimal text in 0..4294967295', "invalid_value", "python_hash_seed")
refused(R, raw(SOURCE, "hash_profile", as_json(PROFILE)[:-1] + ',"algorithm":"md5"}'), "unsupported hash algorithm: md5", "invalid_value", "algorithm")
refused(R, but(SOURCE, type="vllm"), "type must be vLLM or Mooncake", "invalid_value", "type")
refused(R, without(SOURCE, "dp_rank"), "dp_rank is required", "missing", "dp_rank")
for wrong in (0.0, "0", None, 1 << 63):
    refused(R, but(SOURCE, dp_rank=wrong), "dp_rank must be an integer", "invalid_type", "dp_rank")
for wrong in (-1, 1 << 31, (1 << 63) - 1):
    refused(R, but(SOURCE, dp_rank=wrong), "dp_rank must be a non-negative int", "out_of_range", "dp_rank")
# Of several fields with one name the last counts, and the others are not looked at.
refused(R, '{"endpoint":"tcp://e:1",' + as_json(but(SOURCE, endpoint=1))[1:], "endpoint must be a string", "invalid_type", "endpoint")
refused(R, but(SOURCE, endpoint="nowhere"),
        "Failed to subscribe: failed to start ZMQ client: initial connection failed: failed to connect to nowhere: " + SCHEME, status=500)
refused(R, but(SOURCE, replay_endpoint="nowhere"), "invalid service registration: replay_endpoint: " + SCHEME, "invalid_registration")

# /unregister
refused(U, without(KEY, "instance_id"), "instance_id is required", "missing", "instance_id")
refused(U, without(KEY, "dp_rank"), "dp_rank is required", "missing", "dp_rank")
for wrong in ("0", -1, 0.0, None, 1 << 31, 1 << 63):
    refused(U, but(KEY, dp_rank=wrong), "dp_rank must be a non-negative int", "invalid_value", "dp_rank")
refused(U, KEY, "service not found: 1|default|0", status=404)
refused(U, as_json(but(KEY, tenant_id="t")) + "\n\n{", "service not found: 1|t|0", status=404)

# /query and /query_by_hash
for path, base, prompt in (("/query", QUERY, "token_ids"), ("/query_by_hash", HASHES, "seq_hashes")):
    refused(path, without(base, "model"), "model is required", "missing", "model")
    refused(path, but(base, model=7), "model must be a string", "invalid_type", "model")
    refused(path, but(base, model=""), "model must not be empty", "invalid_value", "model")
    refused(path, without(base, "block_size"), "block_size is required", "missing", "block_size")
    for wrong in ("16.0", "1e1", '"16"', "null", str(1 << 63), str(1 << 64)):
        refused(path, raw(base, "block_size", wrong), "block_size must be an integer", "invalid_type", "block_size")
    for wrong in (0, -16):
        refused(path, but(base, block_size=wrong), "block_size must be greater than zero", "out_of_range", "block_size")
    refused(path, without(base, prompt), prompt + " is required", "missing", prompt)
    for wrong in (None, "1", 1, {}, {"a": [1]}):
        refused(path, but(base, **{prompt: wrong}), prompt + " must be an array", "not_array", prompt)
    for wrong in ('"1"', "1.0", "1e0", "null", "[1]", "true", "{}", str(1 << 64)):
        refused(path, raw(base, prompt, "[1, %s]" % wrong), prompt + " element must be a JSON integer", "invalid_type", prompt, 1)
    refused(path, but(base, **{prompt: [1] * 65}), prompt + " has 65 elements, limits.max_tokens allows 64", "out_of_range", prompt, 64)
    for name in ("tenant_id", "lora_name", "instance_id"):
        for wrong in (None, False, 3):
            refused(path, but(base, **{name: wrong}), name + " must be a string", "invalid_type", name)
    for wrong in (42, [], {}):
        refused(path, but(base, cache_salt=wrong), "cache_salt must be a string or null", "invalid_type", "cache_salt")
    # Whatever the order on the wire.
    faults = {"instance_id": 1, "cache_salt": 1, "lora_name": 1, "tenant_id": 1, prompt: 1, "block_size": 0}
    refused(path, faults | {"zz": 1}, "unsupported request field: zz", "unknown_field", "zz")
    refused(path, faults, "model is required", "missing", "model")
    faults["model"] = "m"
    for name, message, reason in (
        ("block_size", "block_size must be greater than zero", "out_of_range"), (prompt, prompt + " must be an array", "not_array"),
        ("tenant_id", "tenant_id must be a string", "invalid_type"), ("lora_name", "lora_name must be a string", "invalid_type"),
        ("cache_salt", "cache_salt must be a string or null", "invalid_type"), ("instance_id", "instance_id must be a string", "invalid_type"),
    ):
        refused(path, faults, message, reason, name)
        faults[name] = base.get(name, "")
    refused(path, '{"block_size":"x","model":7,' + as_json(without(base, prompt))[1:], prompt + " is required", "missing", prompt)
    said(path, '{"block_size":"x",%s:true,"model":7,' % as_json(prompt) + as_json(base)[1:], 200, '{"instances":{}}\n')
    said(path, "\r\n\t " + json.dumps(base, indent=2) + " \n", 200, '{"instances":{}}\n')
    said(path, raw(base, "m\\u006fdel", '"\\u006d"').replace('"model":"m",', ""), 200, '{"instances":{}}\n')
for wrong in (1 << 31, -(1 << 31) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)):
    refused("/query", but(QUERY, token_ids=[1, 2, wrong]), "token_ids element is outside the int32 range", "out_of_range", "token_ids", 2)
for fine in ([], [0, -(1 << 31), (1 << 31) - 1]):
    said("/query", but(QUERY, token_ids=fine), 200, '{"instances":{}}\n')
said("/query_by_hash", but(HASHES, seq_hashes=[0, (1 << 64) - 1, -(1 << 63), -1]), 200, '{"instances":{}}\n')
said("/query_by_hash", raw(HASHES, "seq_hashes", "[-0]"), 200, '{"instances":{}}\n')

# Methods and paths.
for request, status, message in (
    [("GET " + p, 405, "Method not allowed") for p in ("/register", "/unregister", "/query", "/query_by_hash")]
    + [("POST " + p, 405, "Method not allowed") for p in ("/services", "/global_view", "/health")]
    + [("PUT /query", 404, "no such path: /query"), ("POST /v2/query", 404, "no such path: /v2/query"), ("GET /nothing", 404, "no such path: /nothing")]
):
    steps.append({"request": request, "status": status, "json_answer": message + "\n"})

text_of = "[\n" + ",\n".join(map(json.dumps, steps)) + "\n]\n"
(pathlib.Path(__file__).parent / "json_errors.json").write_text(text_of)
