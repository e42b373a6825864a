package harness

import "github.com/vmihailenco/msgpack/v5"

// Compact is an array whose integers have the fewest bytes, as other languages' encoders
// write them.
type Compact[T uint32 | uint64] []T

// EncodeMsgpack implements msgpack.CustomEncoder.
func (c Compact[T]) EncodeMsgpack(e *msgpack.Encoder) error {
	err := e.EncodeArrayLen(len(c))
	for _, n := range c {
		if err == nil {
			err = e.EncodeUint(uint64(n))
		}
	}
	return err
}
