package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
)

// maxSourceFile bounds a file of sources.
const maxSourceFile = 1 << 20

// ReadSources reads a file that has sources and no other setting. The error joins all mistakes.
func ReadSources(path string) ([]Source, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.Size() > maxSourceFile {
		return nil, fmt.Errorf("%d bytes are more than the %d of a file of sources", info.Size(), maxSourceFile)
	}
	loaded, err := Load(Options{File: path})
	if err != nil {
		return nil, err
	}
	rest := loaded.Config
	sources := rest.Sources
	rest.Sources = nil
	if !reflect.DeepEqual(rest, Default()) {
		return nil, errors.New("a file of sources has no other settings")
	}
	return sources, nil
}
