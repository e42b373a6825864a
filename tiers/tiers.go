// Package tiers names the media a KV block can live on, and folds the matches of an index
// for a prompt into the numbers that answers carry.
//
//	"cpu_pinned" --Parse--> Medium{Host, "CPU"}
//
//	prefixes   a: 0 1 2     b: 0 1 2 3 4 5     what an owner holds from the first block on
//	later      p: 5 6 7                        what an owner holds behind a gap
//	   |                                       a, b: (instance, rank, medium); p: a pool
//	   +--Hits--> one Row per instance: longest prefix, tokens per medium,
//	              tokens per rank, and the cascade of every rank
//
// The numbers, for one instance I and a chain of blocks:
//
//  1. Longest is the contiguous prefix in which each block is on some medium of
//     some rank of I, or in a pool that serves I.
//  2. Media counts the blocks of that prefix present on a medium, held
//     by I or by its pools. A medium may have holes, so its count is no prefix.
//  3. Rank.Blocks counts the blocks of that prefix a rank holds itself, on any
//     medium. Pools are no ranks.
//  4. Rank.Device, Host, Disk, External are the cascade: a cursor starts at
//     block 0 and walks the rank's own device blocks, then host blocks, disk
//     blocks and external blocks of the rank itself or of a serving pool. It
//     never returns to a tier it left, so Device <= Host <= Disk <= External
//     <= Longest.
//
// All numbers are blocks; the caller multiplies by the block size.
//
// Concurrency: Parse is pure, a Roster is never changed. A Folder holds buffers and
// serves one goroutine at a time; the rows it returns are valid until its next fold.
//
// Cost: Hits is one pass over prefixes and spans. An instance without any costs nothing:
// it has the row that was made with the Roster. A prefix or span costs its
// row a few comparisons; that of a pool costs them each row it serves. A warm Folder does
// not allocate.
package tiers

import "strings"

// Tier is the class of a medium, fastest first.
type Tier uint8

const (
	Device   Tier = iota // G1: memory of the accelerator
	Host                 // G2: memory of the host
	Disk                 // G3: local or shared storage
	External             // G4: reached over a network, no storage named
	Other                // a medium this table does not know
)

// String returns the lower-case name of the tier.
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case Host:
		return "host"
	case Disk:
		return "disk"
	case External:
		return "external"
	}
	return "other"
}

// Names of the known media, as keys in answers.
const (
	NameDevice   = "GPU"
	NameHost     = "CPU"
	NameDisk     = "DISK"
	NameExternal = "EXTERNAL"
)

// Medium is where a block lives: its tier, and the key under which answers
// report it. Media of one known tier share one name.
type Medium struct {
	Tier Tier
	Name string
}

// longest known spelling, in bytes
const maxSpelling = len("SHARED_STORAGE")

// LMCache names its host memory lmcache-l1, and its storage by backend, such as
// lmcache-l2-fs.
const (
	lmcacheHost = "LMCACHE-L1"
	lmcacheDisk = "LMCACHE-L2-"
)

// Parse maps the medium string of an event to a Medium, ignoring case. The empty
// string is the device: publishers that name no medium know only that one. A
// string of no known publisher is Other under its own upper-cased name; it is
// never taken for a device. Known spellings do not allocate.
func Parse(raw string) Medium {
	if len(raw) > len(lmcacheDisk) && strings.EqualFold(raw[:len(lmcacheDisk)], lmcacheDisk) {
		return Medium{Disk, NameDisk}
	}
	if len(raw) > maxSpelling {
		return Medium{Other, strings.ToUpper(raw)}
	}
	var buf [maxSpelling]byte
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		buf[i] = c
	}
	switch string(buf[:len(raw)]) {
	case "", "GPU", "DEVICE":
		return Medium{Device, NameDevice}
	case "CPU", "CPU_PINNED", "CPU_TIER1", "HOST", "HOST_PINNED", lmcacheHost:
		return Medium{Host, NameHost}
	case "DISK", "FS", "OBJ", "STORAGE", "SHARED_STORAGE", "CPU_TIER2", "NVME":
		return Medium{Disk, NameDisk}
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return Medium{External, NameExternal}
	}
	return Medium{Other, strings.ToUpper(raw)}
}
