package scope

// Shard is everything of one tenant's model, whatever its block sizes. Replicas share the fleet's shards among them:
// queries that name no block size ask one replica.
type Shard struct{ Tenant, Model string }
