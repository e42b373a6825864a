// Package tiers names the media a KV block can live on, and folds the matches of an index
// for a prompt into the numbers that answers carry.
//
//	"cpu_pinned" --ParseMedium--> Medium{Host, "CPU"}
//
//	prefixes   a: 0 1 2     b: 0 1 2 3 4 5     what an owner holds from the first block on
//	later      p: 5 6 7                        what an owner holds behind a gap
//	   |                                       a, b: (instance, rank, medium); p: a pool
//	   +--FoldHits--> one Row per instance: longest prefix, tokens per medium,
//	                  tokens per rank, and the cascade of every rank
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
// Concurrency: ParseMedium is pure, a RowSet is never changed. A Folder holds buffers and
// serves one goroutine at a time; the rows it returns are valid until its next fold.
//
// Cost: FoldHits is one pass over prefixes and spans. An instance without any costs nothing:
// it has the row that was made with the RowSet. A prefix or span costs its
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

// ParseMedium maps the medium string of an event to a Medium, ignoring case. The empty
// string is the device: publishers that name no medium know only that one. A
// string of no known publisher is Other under its own upper-cased name; it is
// never taken for a device. Known spellings do not allocate.
func ParseMedium(raw string) Medium {
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

// Owner is what one owner id of an index stands for.
type Owner struct {
	// Instance is the id of the instance, Pool or Retired.
	Instance int32
	// Rank is the data-parallel rank; meaningless for a pool.
	Rank int32
	// Medium is where the owner keeps its blocks.
	Medium Medium
	// Serves lists the instances a pool is bound to; nil is all of them, an
	// empty list none. Not used for instances.
	Serves []int32
	// Chunk is how many blocks the owner uses whole or not at all; 0 and 1 are one. Every stretch
	// of blocks that it holds begins with a chunk.
	Chunk uint32
	// Cache is the groups of the engine's layers on the medium, nil where there is one group and it has full
	// attention. The owner is of Cache.Groups[Group].
	Cache *Cache
	Group uint32
}

// Prefix is how many leading blocks an owner holds without a gap, at least one. Owner is an
// index into the owner table. The type has no name of its own: an index hands its list on.
type Prefix = struct{ Owner, Blocks uint32 }

// Span is blocks [From, To) that an owner holds, From above zero and below To.
type Span = struct{ Owner, From, To uint32 }

// Instance is one routable target a row is wanted for.
type Instance struct {
	ID    int32   // >= 0, dense: a Roster keeps a table as long as the largest id
	Ranks []int32 // registered ranks; each appears in the row, also with zeros
}

// Rank is what one data-parallel rank of an instance can serve, in blocks.
type Rank struct {
	Rank int32
	// Blocks of the matched prefix the rank holds itself, on any medium.
	Blocks int
	// Device, Host, Disk and External are cumulative cascade boundaries.
	Device, Host, Disk, External int
	// Expected is how far the cascade reaches if the blocks expected of the rank count as on its device:
	// at least External. It is 0 unless it was asked for.
	Expected int
}

// MediumCount is the number of blocks of the matched prefix on one medium.
type MediumCount struct {
	Name   string
	Blocks int
}

// Row is the answer for one instance, in blocks.
type Row struct {
	Longest int
	// Media begins with GPU, CPU and DISK, in this order and also when zero.
	// Further media follow by name, each with at least one block.
	Media []MediumCount
	// Ranks is sorted by rank: the registered ones, and any other that holds a
	// block of the matched prefix.
	Ranks []Rank
}

// Hit is the row of an instance that holds something, or that a pool bound to it does.
type Hit struct {
	At int32 // position in the RowSet
	Row
}

// Soon is blocks [From, To) that count as if they were on the device of a rank. They do not have to be of
// a rank: Rank is -1 then.
type Soon struct {
	Instance, Rank int32
	From, To       uint32
}

// EndOfWhole returns the end of the whole chunks among blocks [from, to) that the owner holds. Of an owner with a Cache, HitFinder
// has left the others out.
func (o *Owner) EndOfWhole(from, to uint32) uint32 {
	if o.Cache != nil {
		return to
	}
	return o.endOfChunks(from, to)
}

func (o *Owner) endOfChunks(from, to uint32) uint32 { return to - (to-from)%max(o.Chunk, 1) }
