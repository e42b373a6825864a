package prompt

import "golang.org/x/sys/cpu"

// hasVectors reports whether readWindows works on this processor.
var hasVectors = cpu.X86.HasAVX2 && cpu.X86.HasBMI1 && cpu.X86.HasPOPCNT

// readWindowsAVX2 reads elements from windows times 64 bytes at text. A comma precedes
// text. The six bytes before the comma are readable.
//
// It stops before a window that has an element of more than seven digits, or anything
// but elements, commas, and single spaces behind commas. It also stops when list has
// less room left than a window may need. It overwrites elements behind those that it
// returns, within the room.
//
// It returns the number of elements and the offset of the comma behind the last one,
// which is -1 if there is none.
//
//go:noescape
func readWindowsAVX2(list *uint32, room int, text *byte, windows int) (n, comma int)

// vectorWindows bounds the windows of one call, because the scheduler cannot stop the
// call: 12 µs.
const vectorWindows = 1 << 10

// readWindows reads elements of up to seven digits into list, as stretch does, for as
// long as whole windows of text are left. It returns the number of elements and where it
// stopped.
func readWindows(list []uint32, src []byte, at int) (n, next int) {
	for at >= 6 && len(src)-at > window && len(list)-n >= crowd && src[at] == ',' {
		text := src[at+1:]
		more, comma := readWindowsAVX2(&list[n], len(list)-n, &text[0], min(len(text)/window, vectorWindows))
		if more == 0 {
			break
		}
		n += more
		at += 1 + comma
	}
	return n, at
}
