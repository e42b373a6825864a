//go:build !race

package kvconductor_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// TestPackageVersions holds the versions of packages, and that those of commits sort by time.
func TestPackageVersions(t *testing.T) {
	versions := func(version string, seconds int64) (deb, chart, wheel string) {
		t.Helper()
		out, err := exec.Command("deploy/versions", version, fmt.Sprint(seconds)).Output()
		if err != nil {
			t.Fatal(version, err)
		}
		lines := strings.Split(string(out), "\n")
		if len(lines) != 4 {
			t.Fatalf("%s: %q", version, out)
		}
		return strings.TrimPrefix(lines[0], "deb="), strings.TrimPrefix(lines[1], "chart="), strings.TrimPrefix(lines[2], "wheel=")
	}
	const second = 1764453625 // 2025-11-29 22:00:25 UTC
	var debs []string         // in order
	f := func(version string, seconds int64, wantDeb, wantChart, wantWheel string) {
		t.Helper()
		deb, chart, wheel := versions(version, seconds)
		if deb != wantDeb || chart != wantChart || wheel != wantWheel {
			t.Errorf("%s: %s, %s, %q", version, deb, chart, wheel)
		}
		debs = append(debs, deb)
	}
	f("f58af3d6", second, "0.0.1~0.20251129220025.gf58af3d6", "0.0.1-0.20251129220025.gf58af3d6", "0.0.1.dev20251129220025")
	f("058af3d6-dirty", second+60, "0.0.1~0.20251129220125.g058af3d6.dirty", "0.0.1-0.20251129220125.g058af3d6.dirty",
		"0.0.1.dev20251129220125")
	f("v0.1.0", second, "0.1.0", "0.1.0", "0.1.0")
	f("v0.1.0-9-gfbc1234", second, "0.1.1~0.20251129220025.gfbc1234", "0.1.1-0.20251129220025.gfbc1234", "0.1.1.dev20251129220025")
	f("v0.1.0-10-g0bc1234", second+3600*24, "0.1.1~0.20251130220025.g0bc1234", "0.1.1-0.20251130220025.g0bc1234",
		"0.1.1.dev20251130220025")
	f("v0.1.1", second, "0.1.1", "0.1.1", "0.1.1")
	f("v0.2.0-rc.1", second, "0.2.0~rc.1", "0.2.0-rc.1", "0.2.0rc1")
	f("v0.2.0-rc.1-3-g0bc1234", second, "0.2.0~rc.1.0.20251129220025.g0bc1234", "0.2.0-rc.1.0.20251129220025.g0bc1234",
		"0.2.0rc1.post0.dev20251129220025")
	f("v0.2.0-rc.2", second, "0.2.0~rc.2", "0.2.0-rc.2", "0.2.0rc2")
	f("v0.2.0", second, "0.2.0", "0.2.0", "0.2.0")
	f("v0.3.0-alpha.1", second, "0.3.0~alpha.1", "0.3.0-alpha.1", "0.3.0a1")
	f("v0.3.0-beta", second, "0.3.0~beta", "0.3.0-beta", "0.3.0b0")
	f("v0.3.0-try.2", second, "0.3.0~try.2", "0.3.0-try.2", "0.3.0.dev20251129220025")
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("no dpkg to compare versions with")
	}
	debs = append([]string{"0~fbc1234"}, debs...) // of a package of before
	for i := 1; i < len(debs); i++ {
		if out, err := exec.Command("dpkg", "--compare-versions", debs[i-1], "lt", debs[i]).CombinedOutput(); err != nil {
			t.Errorf("%s does not come before %s: %v %s", debs[i-1], debs[i], err, out)
		}
	}
}
