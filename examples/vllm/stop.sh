#!/bin/sh
# stop.sh [NAME...] ends engines that start.sh started, all of them without a NAME.
# They end at once (SIGKILL), as if the machine had failed.
set -eu

state=${STATE:-/tmp/conductor-tutorial}
if [ $# -eq 0 ]; then
	for file in "$state"/*.pid; do
		[ -e "$file" ] && set -- "$@" "$(basename "$file" .pid)"
	done
fi
for name; do
	if [ ! -e "$state/$name.pid" ]; then
		echo "stop.sh: no engine $name was started" >&2
		exit 1
	fi
	# vLLM consists of several processes, which are one group.
	group=$(cat "$state/$name.pid")
	# After a restart of the machine the number may be that of another program.
	if ps -o args= -p "$group" | grep -q vllm && kill -s KILL -- "-$group" 2>/dev/null; then
		echo "$name has ended"
	else
		echo "$name was not running any more"
	fi
	rm "$state/$name.pid"
done
