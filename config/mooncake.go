package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Mooncake's own file, as all its versions since March 2026 read it:
//
//	{"http_server_port": 13333,
//	 "kvevent_instance": {"NAME": {"endpoint": …, "type": …, "modelname": …, "block_size": …, …}}}
//
// It works unchanged, and its two keys may stand next to ours. Where its readers
// differ among themselves, or ours differs from all of them:
//
//	http_server_port absent   the default listeners; theirs bound port 0, a free
//	                          one that no router could know
//	http_server_port given    that one listener, as theirs had
//	a bad entry               an error like any other; theirs logged it and served
//	                          without the engine, which looks like an empty cache
//	instance id               instance_id where given, else the entry's name, so
//	                          several entries can be the ranks of one instance
//	tenant_id ""              the default tenant; their first reader made it another
//	dp_rank absent            0; their later readers skipped the entry
//	type                      SGLang and Standard too
//	hash_profile absent       blocks are found by their tokens; their later readers
//	                          skipped the entry
//	cache_group               accepted without effect, with a warning: groups are
//	                          learned from events
const (
	mooncakePort    = "http_server_port"
	mooncakeSources = "kvevent_instance"
	mooncakeFile    = ".mooncake/conductor_config.json" // under $HOME
)

// findFile returns the file to read: the one asked for, the one named by
// CONDUCTOR_CONFIG_PATH, Mooncake's usual one, or none.
func (l *loader) findFile(o Options, env map[string]string) (name string, data []byte) {
	read := func(name string, at place, missing func()) (string, []byte) {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			missing()
			return "", nil
		}
		if err != nil {
			var pe *fs.PathError
			if errors.As(err, &pe) {
				err = pe.Err
			}
			l.errs.add(at, "", "cannot read %q: %s", name, err)
			return "", nil
		}
		return name, data
	}
	if o.File != "" {
		at := place{layer: inFile, name: o.File}
		return read(o.File, at, func() { l.errs.add(at, "", "no such file") })
	}
	if path := env[envFile]; path != "" {
		at := place{layer: inEnv, name: "env " + envFile}
		return read(path, at, func() {
			l.warns.add(at, "", "%q does not exist; serving without a file", path)
		})
	}
	if home := env["HOME"]; home != "" {
		path := filepath.Join(home, mooncakeFile)
		return read(path, place{layer: inFile, name: path}, func() {})
	}
	return "", nil
}

// readMooncakePort turns http_server_port into the one listener it stands for.
func (l *loader) readMooncakePort(t *tree, p pair, out layer) {
	if _, both := out["listeners"]; both {
		l.errs.add(t.at(p.key), mooncakePort, "listeners (%s) says the same; keep one of the two", l.places["listeners"])
		return
	}
	v, ok := t.scalar(p.value, mooncakePort, count(), &l.errs)
	if !ok {
		return
	}
	if port := v.(int); port < 1 || port > 65535 {
		l.errs.add(t.at(p.value), mooncakePort, "%d is out of range 1 to 65535", port)
		return
	}
	out["listeners"] = []Listener{{":" + strconv.Itoa(v.(int)), Conductor}}
	l.places["listeners"] = t.at(p.value)
	l.rename("listeners[0].address", mooncakePort)
}

// readMooncakeSources reads kvevent_instance; first is the index of its first
// entry in the list of all sources.
func (l *loader) readMooncakeSources(t *tree, first int, p pair) (out []Source) {
	pairs, _ := t.mapping(p.value, mooncakeSources, &l.errs)
	for i, entry := range pairs {
		l.rename(fmt.Sprintf("sources[%d]", first+i), join(mooncakeSources, entry.name))
		out = append(out, l.readSource(t, first+i, entry.value, entry.name))
	}
	return out
}

// ignored reports whether a key of an entry is known to Mooncake and without
// effect here, and warns about it.
func (l *loader) ignored(t *tree, path string, p pair) bool {
	if p.name != "cache_group" {
		return false
	}
	if !isNull(p.value) && (p.value.ShortTag() != "!!int" || p.value.Value != "0") { // what happens anyway
		l.warns.add(t.at(p.key), join(l.nameOf(path), p.name), "has no effect; groups are told apart by the events")
	}
	return true
}
