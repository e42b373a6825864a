package tiers

import (
	"strings"
	"testing"

	"example.com/conductor/internal/alloctest"
)

func TestParseMedium(t *testing.T) {
	f := func(raw string, tier Tier, name string) {
		t.Helper()
		want := Medium{tier, name}
		for _, s := range []string{raw, strings.ToLower(raw), strings.ToUpper(raw)} {
			if got := ParseMedium(s); got != want {
				t.Errorf("Parse(%q) = %v, want %v", s, got, want)
			}
		}
	}
	f("", Device, "GPU")
	f("GPU", Device, "GPU")
	f("gPu", Device, "GPU")
	f("DEVICE", Device, "GPU")
	f("CPU", Host, "CPU")
	f("CPU_PINNED", Host, "CPU")
	f("CPU_TIER1", Host, "CPU")
	f("HOST", Host, "CPU")
	f("host_pinned", Host, "CPU")
	f("DISK", Disk, "DISK")
	f("FS", Disk, "DISK")
	f("OBJ", Disk, "DISK")
	f("STORAGE", Disk, "DISK")
	f("SHARED_STORAGE", Disk, "DISK")
	f("CPU_TIER2", Disk, "DISK")
	f("NVME", Disk, "DISK")
	f("EXTERNAL", External, "EXTERNAL")
	f("NETWORK", External, "EXTERNAL")
	f("REMOTE", External, "EXTERNAL")
	f("SHARED", External, "EXTERNAL")
	f("tape", Other, "TAPE")
	f("CPU_TIER3", Other, "CPU_TIER3")
	f(" GPU", Other, " GPU")
	f("a medium with a very long name", Other, "A MEDIUM WITH A VERY LONG NAME")
	f("GPU\x00", Other, "GPU\x00")
	f("été", Other, "ÉTÉ")
}

func TestParseAllocates(t *testing.T) {
	if n := alloctest.PerRun(100, func() {
		ParseMedium("")
		ParseMedium("gpu")
		ParseMedium("shared_storage")
		ParseMedium("Cpu_Pinned")
		ParseMedium("EXTERNAL")
	}); n != 0 {
		t.Errorf("known spellings allocate %v times", n)
	}
}

func TestTierString(t *testing.T) {
	f := func(tier Tier, want string) {
		t.Helper()
		if got := tier.String(); got != want {
			t.Errorf("Tier(%d) = %q, want %q", tier, got, want)
		}
	}
	f(Device, "device")
	f(Host, "host")
	f(Disk, "disk")
	f(External, "external")
	f(Other, "other")
	f(Tier(77), "other")
}
