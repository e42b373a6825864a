package dynamo

import (
	"fmt"
	"strings"
)

// Worker is one subscription given on the command line.
type Worker struct {
	Instance uint64
	Rank     uint32
	Endpoint string // passes checkEndpoint
}

// ParseWorkers reads the value of --workers:
//
//	instance_id[:dp_rank]=zmq_address,…
//
// A missing rank is 0, blank entries are skipped. The first mistake is returned
// in the words of Dynamo's indexer; they hold the entry as it was written.
func ParseWorkers(text string) ([]Worker, error) {
	var workers []Worker
	for entry := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		w, err := parseWorker(entry)
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	type rank struct {
		instance uint64
		rank     uint32
	}
	seen := make(map[rank]bool, len(workers))
	for _, w := range workers {
		key := rank{w.Instance, w.Rank}
		if seen[key] {
			return nil, fmt.Errorf("instance %d dp_rank %d already registered", w.Instance, w.Rank)
		}
		seen[key] = true
	}
	return workers, nil
}

func parseWorker(entry string) (w Worker, err error) {
	left, address, ok := strings.Cut(entry, "=")
	if !ok {
		return w, fmt.Errorf("invalid worker entry `%s`; expected worker_id[:dp_rank]=endpoint", entry)
	}
	id, rank, ranked := strings.Cut(strings.TrimSpace(left), ":")
	if w.Instance, err = parseUint(id, 64); err != nil {
		return w, fmt.Errorf("invalid worker id in `%s`: %w", entry, err)
	}
	if ranked {
		n, err := parseUint(rank, 32)
		if err != nil {
			return w, fmt.Errorf("invalid dp_rank in `%s`: %w", entry, err)
		}
		w.Rank = uint32(n)
	}
	w.Endpoint = strings.TrimSpace(address)
	return w, checkEndpoint(w.Endpoint)
}
