"""Stand-ins for modules that a release imports and a publisher does not need.

A release's unpacked modules come first on the path. Every other import below
the roots named here is answered with a stand-in module. Its attributes are
stand-in classes, unless `define` gives them a value. No stand-in publishes,
encodes or decides anything about a cache, except the two that `sglang` names.
"""

import functools
import hashlib
import importlib.abc
import importlib.machinery
import logging
import sys
import types
import typing

ROOTS = {"vllm", "sglang", "torch", "triton", "pydantic", "numpy"}


class Meta(type):
    """Meta makes attributes and subscripts of a stand-in class stand-ins too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Meta(name, (StandIn,), {})
        setattr(cls, name, made)
        return made

    def __getitem__(cls, _):
        return cls


class StandIn(metaclass=Meta):
    """StandIn accepts any arguments. It keeps named arguments as attributes."""

    def __init__(self, *_, **named):
        self.__dict__.update(named)

    def __call__(self, *args, **_):
        return args[0] if args else self


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Meta(name, (StandIn,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made

    def __or__(self, _):
        return self  # a class in an annotation, whose package is unpacked in part


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        for name, value in DEFINED.get(module.__name__, {}).items():
            setattr(module, name, value)


DEFINED = {}


def define(module, **values):
    DEFINED.setdefault(module, {}).update(values)


def install(unpacked):
    """install puts the unpacked release first and the stand-ins last."""
    sys.path.insert(0, unpacked)
    sys.meta_path.append(Finder())


def logger(name):
    """logger adds what vLLM's loggers have."""
    made = logging.getLogger(name)
    made.warning_once, made.info_once = functools.cache(made.warning), functools.cache(made.info)
    return made


def vllm(integer_hashes):
    """vllm defines values that vLLM's publisher and block pool read."""
    define("vllm.logger", init_logger=logger)
    define("vllm.envs", VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=integer_hashes)
    define("vllm.utils", cdiv=lambda a, b: -(a // -b), sha256=None, GiB_bytes=1 << 30)
    define("vllm.v1.utils", tensor_data=bytes)
    # Not a root: others look for it, and do without.
    extensions = types.ModuleType("typing_extensions")
    extensions.Self, extensions.override = typing.Any, lambda method: method
    sys.modules.setdefault("typing_extensions", extensions)


class Tensor:
    """Tensor holds the slots of a radix node's tokens as a list."""

    def __init__(self, values):
        self.values = list(values)

    def __len__(self):
        return len(self.values)

    def numel(self):
        return len(self.values)

    def __getitem__(self, index):
        picked = self.values[index]
        return Tensor(picked) if isinstance(index, slice) else picked

    def clone(self):
        return Tensor(self.values)

    def to(self, *_, **__):
        return Tensor(self.values)


def sglang():
    """sglang defines lists as tensors, a cache whose pages are all on one device, and the page hash.

    SGLang 0.5.23 hashes pages in a C++ extension. native_hash states the same
    rule in Python: SHA-256 over the previous digest and each token as 4 bytes,
    little-endian; of a bigram both tokens. The hash is 32 bytes in hexadecimal.
    """
    device = type("device", (), {"__init__": lambda self, *_: None})
    define(
        "torch",
        Tensor=Tensor,
        int64="int64",
        device=device,
        tensor=lambda values, **_: Tensor(values),
        empty=lambda *_, **__: Tensor([]),
        cat=lambda parts: Tensor(v for p in parts for v in p.values),
    )
    define("numpy", float64=float)
    define("sglang.srt.mem_cache.allocator.page_interleave", page_interleave_shard_size=lambda _: 1)
    define("sglang.srt.mem_cache.cpp_utils.native_hash", get_native_hash=native_hash)


def native_hash(key, prior, page_size=None):
    units = list(key)
    hashes = []
    for start in range(0, len(units), page_size or len(units) or 1):
        digest = hashlib.sha256(prior or b"")
        for unit in units[start : start + page_size] if page_size else units:
            for token in unit if isinstance(unit, tuple) else (unit,):
                digest.update(int(token).to_bytes(4, "little"))
        prior = digest.digest()
        hashes.append(prior.hex())
    return hashes if page_size else hashes[0]
