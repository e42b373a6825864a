package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
)

// hexText is a number of 64 bits as 16 hexadecimal digits.
type hexText uint64

func (v hexText) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(v)), nil }

func (v *hexText) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	*v = hexText(n)
	return err
}

// digestsRow is the answer of /admin/digest.
type digestsRow struct {
	HashSeed uint64      `json:"hash_seed"`
	Sources  []digestRow `json:"sources"`
}

// digestRow is what one source holds.
type digestRow struct {
	Source      string                `json:"source"`
	InstanceID  string                `json:"instance_id"`
	TenantID    string                `json:"tenant_id"`
	DPRank      int                   `json:"dp_rank"`
	Settings    hexText               `json:"settings"` // fingerprint of the registration, without the replay endpoint
	Epoch       uint64                `json:"epoch"`
	State       string                `json:"state"`
	Reason      string                `json:"reason"`
	Missing     string                `json:"missing"`     // why the history up to the mark is not whole
	Mark        *checkpointRow        `json:"mark"`        // the batch applied last, null before the first
	Checkpoints []checkpointRow       `json:"checkpoints"` // ascending
	Deployments []deploymentDigestRow `json:"deployments"`
}

// sumRow is a digest.
type sumRow struct {
	Blocks int     `json:"blocks"`
	Loose  int     `json:"loose"`
	Digest hexText `json:"digest"`
}

// checkpointRow is a digest behind a batch.
type checkpointRow struct {
	Seq   uint64  `json:"seq"`
	Print hexText `json:"print"`
	sumRow
}

// deploymentDigestRow is a digest in a deployment.
type deploymentDigestRow struct {
	TenantID  string `json:"tenant_id"`
	ModelName string `json:"model_name"`
	BlockSize int    `json:"block_size"`
	sumRow
}

func sumOf(d ingest.Digest) sumRow { return sumRow{d.Blocks, d.Loose, hexText(d.Sum)} }
func (r *sumRow) digest() (d ingest.Digest) {
	return ingest.Digest{Blocks: r.Blocks, Loose: r.Loose, Sum: uint64(r.Digest)}
}

func checkpointOf(c ingest.Checkpoint) checkpointRow {
	return checkpointRow{c.Seq, hexText(c.Print), sumOf(c.Digest)}
}

func (r *checkpointRow) checkpoint() ingest.Checkpoint {
	return ingest.Checkpoint{Seq: r.Seq, Print: uint64(r.Print), Digest: r.digest()}
}

// digest shows what sources hold in few numbers: GET /admin/digest?source=.
func (a *api) digest(g *gin.Context) (any, error) {
	only := g.Query("source")
	all := access.View(a.conductor, g).Inspect().Digests(only)
	if only != "" && len(all) == 0 {
		return nil, ingest.ErrNotFound
	}
	out := digestsRow{HashSeed: a.conductor.Catalog().HashSeed(), Sources: make([]digestRow, len(all))}
	for i, s := range all {
		row := digestRow{
			Source: s.Key().String(), InstanceID: s.Instance, TenantID: s.Tenant, DPRank: s.Rank, Settings: hexText(s.Settings),
			Epoch: s.Epoch, State: s.State, Reason: s.Reason, Missing: s.Missing,
			Checkpoints: make([]checkpointRow, 0, len(s.Checkpoints)), Deployments: make([]deploymentDigestRow, 0, len(s.Deployments)),
		}
		if s.Mark != nil {
			mark := checkpointOf(*s.Mark)
			row.Mark = &mark
		}
		for _, c := range s.Checkpoints {
			row.Checkpoints = append(row.Checkpoints, checkpointOf(c))
		}
		for _, c := range s.Deployments {
			row.Deployments = append(row.Deployments, deploymentDigestRow{
				TenantID: c.Tenant, ModelName: c.Model, BlockSize: c.BlockSize, sumRow: sumOf(c.Digest),
			})
		}
		out.Sources[i] = row
	}
	return out, nil
}

// DigestPath is where a server shows its digests.
const DigestPath = "/admin/digest"

// ReadDigests reads the answer of DigestPath: the hash seed of the server and the digests of its
// sources. Their registrations have the key alone.
func ReadDigests(body io.Reader) (hashSeed uint64, all []ingest.SourceDigest, err error) {
	var in digestsRow
	if err := json.NewDecoder(body).Decode(&in); err != nil {
		return 0, nil, err
	}
	for _, row := range in.Sources {
		s := ingest.SourceDigest{
			Settings: uint64(row.Settings), State: row.State, Epoch: row.Epoch, Reason: row.Reason, Missing: row.Missing,
		}
		s.Instance, s.Tenant, s.Rank = row.InstanceID, row.TenantID, row.DPRank
		if row.Mark != nil {
			mark := row.Mark.checkpoint()
			s.Mark = &mark
		}
		for _, c := range row.Checkpoints {
			s.Checkpoints = append(s.Checkpoints, c.checkpoint())
		}
		for _, c := range row.Deployments {
			s.Deployments = append(s.Deployments, ingest.DeploymentDigest{
				Shard: scope.Shard{Tenant: c.TenantID, Model: c.ModelName}, BlockSize: c.BlockSize, Digest: c.digest(),
			})
		}
		all = append(all, s)
	}
	return in.HashSeed, all, nil
}
