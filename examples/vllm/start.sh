#!/bin/sh
# start.sh NAME PORT EVENTS REPLAY starts one vLLM in the background and waits until it serves.
#
#   PORT    the HTTP server: /v1/completions, /tokenize
#   EVENTS  the socket that publishes what the engine caches and evicts
#   REPLAY  the socket that sends the latest of these events again, to a subscriber that missed some
#
# VLLM is the program of vLLM (default: vllm, found in PATH). MODEL is a model that you have, by name or
# folder; without it the engine gets a small model with random weights, made by model.py.
# STATE is a folder for that model, logs and process ids.
set -eu

if [ $# -ne 4 ]; then
	echo "usage: start.sh NAME PORT EVENTS REPLAY, for example: start.sh engine-1 8001 5557 6557" >&2
	exit 2
fi
name=$1 port=$2 events=$3 replay=$4
here=$(cd "$(dirname "$0")" && pwd)
state=${STATE:-/tmp/conductor-tutorial}
mkdir -p "$state"
vllm=$(command -v "${VLLM:-vllm}") || {
	echo "start.sh: there is no program ${VLLM:-vllm}; install vLLM and set VLLM to its path" >&2
	exit 1
}
if [ -e "$state/$name.pid" ] && kill -0 "$(cat "$state/$name.pid")" 2>/dev/null; then
	echo "start.sh: $name runs already, as process $(cat "$state/$name.pid"); stop it with stop.sh $name" >&2
	exit 1
fi

if [ -n "${MODEL:-}" ]; then
	model=$MODEL weights=auto
else
	model=$state/model weights=dummy
	[ -e "$model/config.json" ] || "$(dirname "$(readlink -f "$vllm")")/python" "$here/model.py" "$model"
fi

# What Conductor needs of an engine is --kv-events-config, and the same PYTHONHASHSEED for all engines, so
# that they call equal blocks by equal names. --enable-prompt-tokens-details makes answers say how many tokens
# came from the cache. The variables of the CPU have no effect on a GPU.
export PYTHONHASHSEED=0
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 # GiB for the cache; share few CPUs
[ "$weights" = auto ] || export HF_HUB_OFFLINE=1
setsid "$vllm" serve "$model" --served-model-name tutorial --load-format "$weights" \
	--host 127.0.0.1 --port "$port" --block-size 32 --max-model-len 4096 --enforce-eager \
	--enable-prompt-tokens-details \
	--kv-events-config "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\",
		\"endpoint\": \"tcp://*:$events\", \"replay_endpoint\": \"tcp://*:$replay\"}" \
	>"$state/$name.log" 2>&1 </dev/null &
pid=$!
echo "$pid" >"$state/$name.pid"

echo "$name starts as process $pid, which takes a minute or two. Its log is $state/$name.log"
until curl -sf -o /dev/null "http://127.0.0.1:$port/health"; do
	if ! kill -0 "$pid" 2>/dev/null; then
		echo "start.sh: $name ended. The last lines of $state/$name.log:" >&2
		tail -n 20 "$state/$name.log" >&2
		exit 1
	fi
	sleep 1
done
echo "$name serves on port $port, publishes events on $events and replays them on $replay"
