package prompt

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.com/conductor/internal/must"
)

// TestDigitsStaysInText reads lists between pages that cannot be read.
func TestDigitsStaysInText(t *testing.T) {
	page := unix.Getpagesize()
	pages, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	must.Succeed(t, err)
	defer unix.Munmap(pages)
	for _, guard := range [][]byte{pages[:page], pages[2*page:]} {
		must.Succeed(t, unix.Mprotect(guard, unix.PROT_NONE))
	}
	text := pages[page : 2*page : 2*page]
	row := strings.Repeat(",123456, 70,0,1234567", page/20+1)
	for shift := range 3 * window {
		copy(text, row[shift%21:])
		for at := range 2 * window {
			same(t, text[:window+at], min(at, 40), page, page) // begins at the first byte
			same(t, text[page-2*window-at:], min(at, 40), page, page)
		}
		same(t, text, 0, page, page)
		copy(text, strings.Repeat("1", shift)+strings.Repeat(",1", page))
		same(t, text, shift, page, page)
	}
}
