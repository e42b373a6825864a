package index
import "fmt"
func (w *world) dbg() (s string) {
	x := w.x
	x.lock(); defer x.unlock()
	x.allPieces(func(n uint32, r *piece) {
		for i := range r.len() {
			p := place{n, i}
			if x.isGhost(p) {
				s += fmt.Sprintf("ghost %v loose %t key %d:", p, r.loose(), x.key(p))
				x.allNamesOf(p, func(e uint64, by uint32) { s += fmt.Sprintf(" %d->%d", e, w.o.shared[e]) })
				s += "\n"
			}
		}
	})
	for e, k := range w.o.shared { if !w.o.alive(of(k)) { s += fmt.Sprintf("want %d->%d\n", e, k) } }
	return s
}
