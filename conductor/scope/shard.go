package scope

// Shard is everything of one tenant's model, whatever its block sizes. The replicas of a group share the shards among them:
// queries that name no block size ask one replica.
type Shard struct{ Tenant, Model string }
