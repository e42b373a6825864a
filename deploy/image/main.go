// Command image writes the container image of the server as a file that `docker load` reads. It needs no
// container daemon and downloads no image: there is no base, and the binary is static. The same binary and
// version give the same bytes.
//
//	image -binary FILE -arch ARCH -version VERSION -commit COMMIT -date DATE -tag NAME:TAG FILE
//
// The image is that of the Dockerfile, except for its certificates of authorities: here they are the ones of
// golang.org/x/crypto/x509roots, whose version go.mod has, and not those of Debian. deploy/check compares the two.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user owns the folder of snapshots, and is the user that the server runs as.
const user = 65532

// authorities returns the certificates of authorities, in PEM. Those that are trusted under conditions only, which PEM
// cannot say, are left out.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

// layer returns a layer with one file, or with one folder if data is nil, and the folders above.
func layer(when time.Time, folders []string, path string, owner int, mode int64, data []byte) (v1.Layer, error) {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	add := func(h tar.Header) error {
		h.ModTime, h.Format = when, tar.FormatPAX
		return w.WriteHeader(&h)
	}
	for _, folder := range folders {
		if err := add(tar.Header{Typeflag: tar.TypeDir, Name: folder, Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	h := tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: int64(len(data)), Uid: owner, Gid: owner}
	if data == nil {
		h.Typeflag = tar.TypeDir
	}
	if err := add(h); err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil })
}

func run() error {
	binary := flag.String("binary", "", "static `file` of the server")
	arch := flag.String("arch", "", "architecture of the binary, as Go names it")
	version := flag.String("version", "", "version of the release")
	commit := flag.String("commit", "", "commit it was built from")
	date := flag.String("date", "", "time of that commit, as RFC 3339")
	tag := flag.String("tag", "", "name and tag that docker load gives the image")
	flag.Parse()
	when, err := time.Parse(time.RFC3339, *date)
	if err != nil {
		return fmt.Errorf("-date: %w", err)
	}
	ref, err := name.NewTag(*tag)
	if err != nil {
		return fmt.Errorf("-tag: %w", err)
	}
	server, err := os.ReadFile(*binary)
	if err != nil {
		return err
	}
	roots, err := layer(when, []string{"etc/", "etc/ssl/", "etc/ssl/certs/"}, "etc/ssl/certs/ca-certificates.crt", 0, 0o644, authorities())
	if err != nil {
		return err
	}
	program, err := layer(when, []string{"usr/", "usr/bin/"}, "usr/bin/conductor", 0, 0o755, server)
	if err != nil {
		return err
	}
	state, err := layer(when, []string{"var/", "var/lib/"}, "var/lib/conductor/", user, 0o755, nil)
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, roots, program, state)
	if err != nil {
		return err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Created = *arch, "linux", v1.Time{Time: when}
	for i := range file.History {
		file.History[i].Created = v1.Time{Time: when}
	}
	file.Config = v1.Config{
		User:         fmt.Sprintf("%d:%[1]d", user),
		ExposedPorts: map[string]struct{}{"13333/tcp": {}, "8090/tcp": {}, "50051/tcp": {}},
		Volumes:      map[string]struct{}{"/var/lib/conductor": {}},
		Healthcheck: &v1.HealthConfig{
			Test:     []string{"CMD", "/usr/bin/conductor", "health"},
			Interval: 10 * time.Second, Timeout: 3 * time.Second, StartPeriod: 5 * time.Second,
		},
		StopSignal: "SIGTERM",
		Entrypoint: []string{"/usr/bin/conductor"},
		Cmd:        []string{"serve"},
		Labels: map[string]string{
			"org.opencontainers.image.title":         "conductor",
			"org.opencontainers.image.description":   "KV-cache indexer for fleets of inference engines",
			"org.opencontainers.image.source":        "https://example.com/conductor",
			"org.opencontainers.image.documentation": "https://example.com/conductor/blob/main/docs/README.md",
			"org.opencontainers.image.licenses":      "Apache-2.0",
			"org.opencontainers.image.version":       *version,
			"org.opencontainers.image.revision":      *commit,
			"org.opencontainers.image.created":       *date,
		},
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return err
	}
	return tarball.WriteToFile(flag.Arg(0), ref, img)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
