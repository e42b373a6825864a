// Package catalog has what a fleet is registered for: the deployments, each with the index of its blocks, and the
// sources that belong to them, as far as queries need to know a source.
//
//	Join(Member) --> Deployment --> Instances --> Roster: whom an answer has rows of
//	Enter(Member) -> Namespace: the source's number in the index, the names of its blocks
//	Models: a name in a query --> the model that it means
//
// A deployment is what a router asks about: everything of one tenant, model and block size. A member is a source that is
// registered for one deployment, and may hold blocks in further ones: it has a namespace in each. What follows the
// publisher of a source, and fills its namespaces, is in package ingest. This package does not know it.
//
// Invariants:
//
//  1. A deployment exists while a member is registered for it or has a namespace in it.
//  2. An owner's descriptor is in Owners before its first block is in the index, so a query that finds an owner in a match
//     finds its descriptor too.
//  3. Instances and Roster never change once published. Many registrations in a row cost one rebuild, by the next query.
//  4. Registration of a member never changes; only what Registered has besides does.
//
// All methods are safe for concurrent use. Catalog.mu guards the maps; a query takes it for reading, for one map lookup.
// Under it names.Table.mu, the locks of findings, of a bell and of expect.Table are taken, and once for a deployment that of
// its index, which then keeps the names of blocks that leave (AwaitTokens). Deployment.ownersMu is apart from it.
package catalog
