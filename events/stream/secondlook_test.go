package stream

import "testing"

func TestSlowJoiner(t *testing.T) {
	f := cases(t, replaying)
	f("up end 0.9s", "?0 =synced")
	f("up end 1s", "?0 ?0 =synced")
	f("up end 1s r0 r1 end 1.9s", "?0 ?0 0r 1r =synced")
	f("up end 1s r0 r1 end 2s r1 end 1h", "?0 ?0 0r 1r ?1 =synced") // again, as long as it finds something
	f("up r0 end 1s r0 r1 end 2s r1 r2 end 3.9s", "?0 0r ?0 1r ?1 2r =synced")
	f("up r0 end 1s r0 r1 end 2s r1 r2 end 4s", "?0 0r ?0 1r ?1 2r ?2 =synced")
	f("up r0 end 1s r0 r1 end", "?0 0r ?0 1r =synced")
	f("up r0 end 1 1s", "?0 0r 1 ?1 =synced") // a live batch closes the window
	f("up 1 r0 1s", "?0 0r 1 ?1 =synced")
	f("up r0 end 1s 1 2", "?0 0r ?0 1 2 =synced") // or ends the check
	f("up r0 end 1s 2", "?0 0r ?0 ?1 =replaying")
	f("up r0 end 1s 2 r1", "?0 0r ?0 ?1 1r 2 =synced")
	f("up r0 end 1s r0x", "?0 0r ?0 drop:publisher_restarted ?0 =replaying")
	// The check gets no answer, the next live batch makes it moot.
	f("up r0 end 6s", "?0 0r ?0 =partial:replay_timeout")
	f("up r0 end 6s 1", "?0 0r ?0 1 =synced")
	f("up r0 end 16s r1 end", "?0 0r ?0 ?1 1r =synced")
}

// The publisher's socket drops the last replies and not the end marker. A look shows that, and looks go on until nothing is missing.
func TestLastRepliesLost(t *testing.T) {
	f := cases(t, replaying)
	short := "up r0 r1 r5 r2 r3 end 1s r1 r2 r5 end "
	f(short+"r2 r3 r4 end", "?0 0r 1r ?2 2r 3r ?1 ?2 4r =partial:gap_unrecoverable")
	f(short+"r2 r3 r4 end 2s r2 r3 r4 r5 end", "?0 0r 1r ?2 2r 3r ?1 ?2 4r ?4 5r =synced")
	f(short+"r2 r3 r4 r5 end 2s r5 end 1h", "?0 0r 1r ?2 2r 3r ?1 ?2 4r 5r ?5 =synced")
}
