"""What requests and answers are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Mapping, Sequence, TypedDict


class ConductorError(Exception):
    """An answer of the server that is no success, or no answer.

    status is that of HTTP, or 0 with the reason unreachable if the server did not answer; __cause__ is then
    the error of httpx. retry_after is in seconds, as the server advises. field and index name the field of the request that is wrong, and its element; known has names that
    are registered in place of one that is not, at most 32.
    """

    def __init__(self, status: int, body: Mapping[str, Any], retry_after: float | None = None):
        self.status = status
        self.message = str(body.get("error") or "")
        self.reason = str(body.get("reason") or "")
        self.field: str | None = body.get("field")
        self.index: int | None = body.get("index")
        self.known: tuple[str, ...] = tuple(body.get("known") or ())
        self.retry_after = retry_after  # seconds
        super().__init__(f"{status}: {self.message}" if status else self.message)


class _Context(TypedDict, total=False):
    seq_hashes: Sequence[int]  # hashes of the blocks, in place of tokens
    hash_kind: str  # what they are: canonical, the default, engine, vllm or sglang
    tenant: str
    adapter: str
    salt: str


class QueryOptions(_Context, total=False):
    """What a query may have next to model, block size and tokens."""

    instance: str  # limits the answer to one instance
    min_matched: int  # leaves out rows with shorter prefixes, in tokens
    top: int  # keeps as many rows, the longest
    detail: bool  # adds the states of the sources to each row
    expected: bool  # adds what instances are expected to have soon; min_matched and top then go by that


class _Prompt(TypedDict):
    model: str
    block_size: int


class CandidatesOptions(_Context, total=False):
    """What a question for candidates may have next to model and tokens."""

    block_size: int  # left out: the one that the model is registered with
    min_matched: int  # leaves out rows with less expected, in tokens
    top: int  # keeps as many rows, those with the most expected


class QueryArguments(_Prompt, QueryOptions, total=False):
    """The arguments of one query of a batch."""

    tokens: Sequence[int]


class RoutedOptions(_Context, total=False):
    """What a report may have next to model, block size, tokens and instance."""

    rank: int | None  # data-parallel rank, None if the engine chooses it
    # Seconds until the blocks are no more expected unless the engine announces them, 0.001 to 600. None is as
    # long as its events take by experience.
    ttl: float | None
    request_id: str  # names the request within its tenant, in at most 128 bytes, for take_back


class _Report(_Prompt):
    instance: str


class RoutedArguments(_Report, RoutedOptions, total=False):
    """The arguments of one report of a batch."""

    tokens: Sequence[int]


@dataclass(frozen=True)
class RoutedAnswer:
    """What became of the reports of a batch."""

    errors: tuple[ConductorError | None, ...]  # of each report in order, None if it was kept
    warnings: tuple[str, ...] = ()  # about engines whose events may not tell what they have


@dataclass(frozen=True)
class Rank:
    """How far the media of a data-parallel rank reach, each with those before, in tokens."""

    rank: int
    gpu: int
    cpu: int
    disk: int
    # How far they reach if the blocks expected of the rank count as well, if the query asks for that: at least disk.
    expected: int = 0


@dataclass(frozen=True)
class Source:
    """How current a source was before the index was read."""

    state: str
    reason: str
    epoch: int
    watermark: int | None
    age_ms: int | None
    # By medium, the part of the blocks that is there after "1s" and after "10s".
    stay: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """What one instance has of a prompt, in tokens."""

    instance: str
    longest: int
    media: Mapping[str, int]  # GPU, CPU, DISK and others; empty in msgpack
    ranks: tuple[Rank, ...]
    truncated: bool = False
    window: int = 0
    detail: Mapping[int, Source] = field(default_factory=dict)
    pools: Mapping[str, Source] = field(default_factory=dict)
    expected: int = 0  # prefix that the instance has or is expected to have soon, if the query asks for that: at least longest
    approximate: bool = False  # the engine publishes no events: its blocks are known by reports alone
    upper_bound: bool = False  # events do not tell all that the engine needs of its cache: it may take less

    @classmethod
    def read(cls, instance: str, body: Mapping[str, Any]) -> Row:
        """Reads a row of an answer. Fields of later servers that are no numbers are left out."""
        # Names of media are in capitals; gpu, cpu and disk of a row in msgpack are the best rank's.
        known = {"longest_matched", "DP", "rank_matches", "truncated", "window", "detail", "pools", "gpu", "cpu", "disk", "expected"}
        known |= {"approximate", "upper_bound"}
        ranks = [Rank(int(n), m["gpu"], m["cpu"], m["disk"], m.get("expected", 0)) for n, m in body.get("rank_matches", {}).items()]
        return cls(
            instance=instance,
            longest=body["longest_matched"],
            media={k: v for k, v in body.items() if k not in known and isinstance(v, int)},
            ranks=tuple(sorted(ranks, key=lambda r: r.rank)),
            truncated=bool(body.get("truncated", False)),
            window=body.get("window", 0),
            detail={int(n): _source(s) for n, s in body.get("detail", {}).items()},
            pools={key: _source(s) for key, s in body.get("pools", {}).items()},
            expected=body.get("expected", 0),
            approximate=bool(body.get("approximate", False)),
            upper_bound=bool(body.get("upper_bound", False)),
        )


@dataclass(frozen=True)
class Candidate:
    """An instance that a prompt may go to, with what it has of the prompt, in tokens."""

    instance: str
    address: str  # base URL at which the engine takes requests, empty if that is not known
    # That of the source of the instance that is furthest from synced. Where it is not synced, the engine may have more of the prompt
    # than the numbers say, or less.
    state: str
    longest: int
    expected: int  # prefix that the instance has or is expected to have soon: at least longest
    ranks: tuple[Rank, ...]
    approximate: bool = False  # as of a Row
    upper_bound: bool = False  # as of a Row

    @classmethod
    def read(cls, instance: str, body: Mapping[str, Any]) -> Candidate:
        row = Row.read(instance, {k: v for k, v in body.items() if k not in ("address", "state")})
        return cls(instance, body["address"], body["state"], row.longest, row.expected, row.ranks, row.approximate, row.upper_bound)


@dataclass(frozen=True)
class Candidates:
    """The answer to a router that is about to choose an instance."""

    id: str  # for routed_answer, for some seconds; empty if the server does not keep the answer
    model: str  # that the name in the question means
    adapter: str  # likewise
    block_size: int  # tokens
    rows: tuple[Candidate, ...]  # sorted by instance
    truncated: bool = False


@dataclass(frozen=True)
class Instance:
    """One instance that answers about a model may have a row of."""

    tenant: str
    model: str
    block_size: int  # tokens
    instance: str
    address: str  # as of a Candidate
    state: str  # as of a Candidate
    ranks: tuple[int, ...]
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    approximate: bool = False
    role: str = ""  # prefill or decode, where one engine computes a prompt and another one generates

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Instance:
        return cls(
            tenant=body["tenant_id"],
            model=body["model"],
            block_size=body["block_size"],
            instance=body["instance_id"],
            address=body["address"],
            state=body["state"],
            ranks=tuple(body["ranks"]),
            aliases=tuple(body.get("aliases") or ()),
            adapters=tuple(body.get("adapters") or ()),
            approximate=bool(body.get("approximate", False)),
            role=body.get("role", ""),
        )


def _source(body: Mapping[str, Any]) -> Source:
    return Source(body["state"], body["reason"], body["epoch"], body["watermark"], body["age_ms"], body.get("stay", {}))


@dataclass(frozen=True)
class Registration:
    """A publisher to follow: the body of POST /register.

    With discover the engine tells endpoints, ranks, type, model and block size.
    """

    endpoint: str = ""
    type: str = ""  # vLLM, SGLang, Mooncake, Standard or LMCache
    modelname: str = ""
    instance_id: str = ""
    block_size: int = 0
    dp_rank: int = 0
    discover: str | None = None  # URL of the engine, in place of endpoints
    replay_endpoint: str | None = None
    snapshot_endpoint: str | None = None
    tenant_id: str | None = None
    lora_name: str | None = None
    additionalsalt: str | None = None
    serves: tuple[str, ...] | None = None
    sequence: str | None = None  # own or shared, where it is not that of the type
    replace: bool = False
    aliases: tuple[str, ...] | None = None  # further names of the model in queries
    adapters: tuple[str, ...] | None = None  # that queries may name as their model
    address: str | None = None  # base URL at which the engine takes requests
    role: str | None = None  # prefill or decode
    events: str | None = None  # none: the engine publishes no KV events and has no endpoints
    capacity_blocks: int | None = None  # room of its cache, with events none
    approximate: str | None = None  # count: what routers report of it counts as held

    def body(self) -> dict[str, Any]:
        given = {k: v for k, v in asdict(self).items() if v is not None and v is not False and v != ""}
        if not self.block_size:
            del given["block_size"]
        return given
