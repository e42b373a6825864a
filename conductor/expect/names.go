package expect

// NamesMix is XORed into engine hashes, so that a space takes none of them for a canonical key.
const NamesMix = 0x6e616d65732d6f66
