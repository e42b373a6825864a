"""Fetch releases of engines once and unpack their publisher modules.

usage: fetch.py CACHE NAME==VERSION...

pip's own configuration names the index (PIP_INDEX_URL, pip.conf). The smallest
archive of a release is read, checked against the index's sha256, unpacked to
CACHE/NAME-VERSION and deleted. A release whose modules are unpacked already is left alone.
"""

import base64
import hashlib
import html.parser
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile

MODULES = {
    "lmcache": (
        "lmcache/v1/mp_coordinator/cache_events.py",
        "lmcache/v1/distributed/api.py",
        "lmcache/v1/distributed/internal_api.py",
        "lmcache/v1/mp_coordinator/api.py",
        "lmcache/v1/mp_coordinator/ingest/event_broadcaster.py",
        "lmcache/v1/mp_coordinator/ingest/event_gate.py",
        "lmcache/v1/mp_coordinator/persistence/quiesce.py",
        "lmcache/v1/mp_coordinator/schemas.py",
        "lmcache/v1/mp_coordinator/views/key_directory.py",
        "lmcache/v1/mp_observability/event.py",
        "lmcache/v1/multiprocess/token_hasher.py",
    ),
    "vllm": (
        "vllm/distributed/kv_events.py",
        "vllm/utils/hashing.py",
        "vllm/utils/math_utils.py",
        "vllm/v1/core/block_pool.py",
        "vllm/v1/core/kv_cache_utils.py",
    ),
    "sglang": (
        "sglang/srt/disaggregation/kv_events.py",
        "sglang/srt/mem_cache/base_prefix_cache.py",
        "sglang/srt/mem_cache/cache_init_params.py",
        "sglang/srt/mem_cache/events.py",
        "sglang/srt/mem_cache/evict_policy.py",
        "sglang/srt/mem_cache/radix_cache.py",
        "sglang/srt/mem_cache/utils.py",
    ),
}

# Modules of one release and those after it.
LATER = {
    "vllm": {
        (0, 24): (
            "vllm/v1/core/kv_cache_coordinator.py",
            "vllm/v1/core/kv_cache_manager.py",
            "vllm/v1/core/sched/scheduler.py",
            "vllm/v1/core/single_type_kv_cache_manager.py",
            "vllm/v1/kv_cache_interface.py",
            "vllm/v1/kv_cache_spec_registry.py",
        ),
        (0, 33): (
            "vllm/distributed/kv_transfer/kv_connector/v1/offloading/config.py",
            "vllm/distributed/kv_transfer/kv_connector/v1/offloading/events.py",
            "vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py",
            "vllm/v1/kv_offload/base.py",
            "vllm/v1/kv_offload/config.py",
            "vllm/v1/kv_offload/cpu/common.py",
            "vllm/v1/kv_offload/cpu/manager.py",
            "vllm/v1/kv_offload/cpu/policies/base.py",
            "vllm/v1/kv_offload/cpu/policies/factory.py",
            "vllm/v1/kv_offload/cpu/policies/lru.py",
        ),
    },
    "sglang": {
        (0, 5, 23): (
            "sglang/srt/mem_cache/storage_prefetch.py",
            "sglang/srt/mem_cache/unified_cache/__init__.py",
            "sglang/srt/mem_cache/unified_cache/cache_action.py",
            "sglang/srt/mem_cache/unified_cache/component_type.py",
            "sglang/srt/mem_cache/unified_cache/components/__init__.py",
            "sglang/srt/mem_cache/unified_cache/components/base.py",
            "sglang/srt/mem_cache/unified_cache/components/full.py",
            "sglang/srt/mem_cache/unified_cache/components/mamba.py",
            "sglang/srt/mem_cache/unified_cache/components/swa.py",
            "sglang/srt/mem_cache/unified_cache/session_ref_tracker.py",
            "sglang/srt/mem_cache/unified_cache/tree_core_registry.py",
            "sglang/srt/mem_cache/unified_cache/unified_tree_core.py",
            "sglang/srt/mem_cache/unified_cache/unified_tree_core_interface.py",
            "sglang/srt/mem_cache/unified_radix_cache.py",
            "sglang/srt/session/streaming_session.py",
        ),
    },
}


def later(name, version):
    """later returns the modules that this version must have beside MODULES."""
    numbers = tuple(int(n) for n in version.split("."))
    return tuple(m for since, modules in LATER.get(name, {}).items() if numbers >= since for m in modules)


def pip_setting(name):
    """pip_setting returns a value of pip's configuration, "" if it has none."""
    found = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", name], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else ""


def index_url():
    configured = os.environ.get("PIP_INDEX_URL") or pip_setting("global.index-url") or pip_setting("install.index-url")
    if configured:
        return configured
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


def opener():
    """opener trusts the certificates that pip is configured with."""
    bundle = os.environ.get("PIP_CERT") or pip_setting("global.cert") or None
    context = ssl.create_default_context(cafile=bundle)
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))


def request(url, **headers):
    """request moves credentials from the URL into a header."""
    parts = urllib.parse.urlsplit(url)
    if parts.username:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        url = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return urllib.request.Request(url, headers=headers)


class Links(html.parser.HTMLParser):
    """Links reads an index page in HTML, for indexes without JSON."""

    def __init__(self):
        super().__init__()
        self.files = []

    def handle_starttag(self, tag, attrs):
        url = dict(attrs).get("href")
        if tag == "a" and url:
            url, _, fragment = url.partition("#")
            name, _, value = fragment.partition("=")
            filename = urllib.parse.unquote(url.rsplit("/", 1)[-1])
            self.files.append({"filename": filename, "url": url, "hashes": {name: value}})


def archives(name, version):
    """archives lists the release's archives, smallest first, source archives before wheels of unknown size."""
    page = f"{index_url().rstrip('/')}/{name}/"
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
    with opener().open(request(page, Accept=accept), timeout=120) as answer:
        body, kind = answer.read(), answer.headers.get("Content-Type", "")
    if "json" in kind:
        files = json.loads(body)["files"]
    else:
        links = Links()
        links.feed(body.decode())
        files = links.files
    found = [
        f
        for f in files
        if f["filename"] == f"{name}-{version}.tar.gz"
        or f["filename"].startswith(f"{name}-{version}-")
        and f["filename"].endswith(".whl")
    ]
    for f in found:
        f["url"] = urllib.parse.urljoin(page, f["url"])
    if not found:
        sys.exit(f"the index has no archive of {name} {version}")
    return sorted(found, key=lambda f: (f.get("size") or 1 << 40, f["filename"].endswith(".whl")))


def unpack(archive, modules, target):
    """unpack writes modules of an archive below target."""
    written = 0
    if archive.endswith(".whl"):
        with zipfile.ZipFile(archive) as wheel:
            for module in modules:
                if module in wheel.namelist():
                    written += write(target, module, wheel.read(module))
    else:
        with tarfile.open(archive) as source:
            for member in source:
                # A source archive has a folder of its own; SGLang's package is in its root or below it.
                for module in modules:
                    if member.isfile() and member.name.split("/", 1)[-1] == module:
                        written += write(target, module, source.extractfile(member).read())
    return written


def missing(target, modules):
    """missing returns the first module that is not below target, None if all are there."""
    return next((m for m in modules if not os.path.exists(os.path.join(target, m))), None)


def write(target, module, data):
    path = os.path.join(target, module)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return 1


def fetch(cache, name, version):
    target = os.path.join(cache, f"{name}-{version}")
    needed = (MODULES[name][0], *later(name, version))
    if not missing(target, needed):
        return
    archive = archives(name, version)[0]
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        path = os.path.join(folder, archive["filename"])
        digest = hashlib.sha256()
        with opener().open(request(archive["url"]), timeout=120) as answer, open(path, "wb") as file:
            while block := answer.read(1 << 20):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != archive["hashes"].get("sha256"):
            sys.exit(f"{archive['filename']} has another sha256 than the index names")
        unpacked = os.path.join(folder, "unpacked")
        count = unpack(path, MODULES[name] + later(name, version), unpacked)
        if module := missing(unpacked, needed):
            sys.exit(f"{archive['filename']} has no {module}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(unpacked, target)
    print(f"{archive['filename']}: {count} modules unpacked")


def main():
    cache = sys.argv[1]
    os.makedirs(cache, exist_ok=True)
    for release in sys.argv[2:]:
        name, _, version = release.partition("==")
        if name not in MODULES or not version:
            sys.exit(f"{release}: want vllm==VERSION, sglang==VERSION or lmcache==VERSION")
        fetch(cache, name, version)


if __name__ == "__main__":
    main()
