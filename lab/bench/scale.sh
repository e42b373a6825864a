#!/bin/sh
# Measures over 1, 2, 4, 8 and 16 cores, or as many as there are, in ten minutes at most: the index next to Dynamo's tree, and
# servers that are asked and that follow engines. It needs neither Go nor Rust nor a network. Build here, copy the folder there:
#
#	make build crtc
#	tar czf scale.tgz bin/conductor bin/conductor-lab bin/peers/crtc lab/bench/scale.sh lab/bench/streams
#
#	lab/bench/scale.sh [SECONDS]	each measurement, 2 by default; tables on standard output, JSON in $RESULTS
#
# conductor and conductor-lab built with -ldflags '-s -w' are smaller by a third. Without bin/peers/crtc there are our figures alone.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-2}
results=${RESULTS:-bench-results}
streams=lab/bench/streams
mkdir -p "$results"
end=$(($(date +%s) + 590))

echo "== the machine, $(date -u +%Y-%m-%d)"
(lscpu 2>/dev/null | grep -E '^(Model name|CPU\(s\)|Thread|Core|Socket|NUMA node\(s\)|L[123]|CPU max)' || true)
uname -srm
awk '/MemTotal|MemAvailable/' /proc/meminfo
echo "load $(cat /proc/loadavg), open files at most $(ulimit -n), may use $(awk '/Cpus_allowed_list/ {print $2}' /proc/self/status)"

cores=
for n in 1 2 4 8 16; do
	if [ "$n" -le "$(nproc)" ]; then cores="$cores $n"; fi
done
list=$(echo $cores | tr ' ' ,)
rival=
if [ -x bin/peers/crtc ]; then rival='--rival bin/peers/crtc'; fi

# measure NAME COMMAND... prints what the command prints, as long as there is time.
measure() {
	name=$1
	shift
	left=$((end - $(date +%s)))
	if [ "$left" -lt 5 ]; then
		echo "no time for $name"
		return
	fi
	if ! timeout "$left" "$@" >"$results/$name" 2>"$results/$name.log"; then
		echo "$name fails, or takes longer than the $left s that are left: $(tail -n 3 "$results/$name.log")"
	fi
}

# values FILE KEY... prints numbers of a JSON object, the first of each name.
values() {
	file=$1
	shift
	for key; do
		sed -n "s/^ *\"$key\": \([0-9.e+-]*\),*\$/\1/p" "$file" | head -n 1
	done
}

echo
echo "== index, 128 workers x 4 copies of the built-in shape, then the recorded stream of vLLM's cache managers"
for load in '--workers 128 --copies 4' "--stream $streams/vllm.msgpack.zst"; do
	name=index-$(echo "$load" | tr -cs 'a-z0-9\n' -)
	measure "$name" bin/conductor-lab bench index $load --idle 0 --scale "$list" --duration "${seconds}s" $rival
	sed -n '/^writers and readers/,$p' "$results/$name"
done

echo
echo "== queries of 8,192 tokens in JSON, 8 connections for each core of the server"
echo "cores | requests/s | p50 us | p99 us | server us of CPU a request | server's cores used"
for n in $cores; do
	measure "query-$n.json" bin/conductor-lab bench query --json --quiet --cores "$n" --connections $((8 * n)) --blocks 300000 --duration "$((2 * seconds))s"
	echo "$n" $(values "$results/query-$n.json" requests_per_sec p50_us p99_us server_cpu_us_per_request server_cores)
	sed -n 's/^ *"cores": "\(.*\)",$/  \1/p' "$results/query-$n.json"
done

echo
echo "== ingest of the recorded stream, as fast as the server reads, 8 publishers for each core of the server"
for n in $cores; do
	if [ "$n" -gt 1 ] && [ $((2 * n)) -gt "$(nproc)" ]; then
		continue # the publishers need as many
	fi
	measure "ingest-$n" bin/conductor-lab bench ingest --stream "$streams/vllm.msgpack.zst" --cores "$n" --publishers $((8 * n)) --processes "$n" --rounds 1 --quiet
	cat "$results/ingest-$n"
done
echo
echo "done, $((end - $(date +%s))) s before the ten minutes are over"
