package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	kvconductor "example.com/conductor"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/replay"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/events"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/keyfile"
	"example.com/conductor/spelling"
)

func replayCommand() *cobra.Command {
	var until, queryFile, listen, keyFile string
	var q question
	cmd := &cobra.Command{
		Use:   "replay DIR",
		Short: "Rebuild the past from a server's journal and answer queries of then",
		Long: "Reads the journal that a server wrote to journal.dir, rebuilds what the server knew, and prints a summary.\n" +
			"With a question, or a file with the body of POST /query, it answers that; with --listen it serves the API\n" +
			"until it is interrupted. The journal is only read; it may be that of a running server.\n\n" +
			"The summary lists the runs, which are lives of the recording server. --until stops the rebuilding at a batch or\n" +
			"at a time: every source then is as the journal had it. A time between two runs is the end of the earlier one, a\n" +
			"time after the last record is the end of the journal, and a time before the first record is an error.",
		Example: "  conductor replay journal/\n" +
			"  conductor replay journal/ --until prefill-1:1820 --model deepseek --block-size 16 --tokens 1,2,3,4\n" +
			"  conductor replay journal/ --until 2026-03-01T14:05:00Z --query-file query.json\n" +
			"  conductor replay journal/ --until 'prefill-1|default|0:3/1820' --listen 127.0.0.1:13399",
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&until, "until", "",
		"stop after this batch, as `SOURCE:SEQ` or SOURCE:EPOCH/SEQ, or after the last record up to a time of RFC 3339 or a duration "+
			"ago, such as 20m; SOURCE is instance|tenant|rank or an instance of one source")
	f.StringVar(&queryFile, "query-file", "",
		"print the answer to this `file`, the JSON body of POST /query or /query_by_hash; - reads standard input")
	f.StringVar(&keyFile, "key-file", "", "key of a sealed journal, the `file` of the server's journal.key_file")
	f.StringVar(&listen, "listen", "", "serve the API of the past on this `address`")
	q.addFlags(cmd)
	f.BoolVar(&q.asJSON, "json", false, "print the summary, or the answer to a question, as JSON")
	cmd.MarkFlagsMutuallyExclusive("listen", "query-file", "tokens", "seq-hashes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asked := q.tokens != "" || q.hashes != ""
		if asked && (q.model == "" || q.blockSize == 0) {
			return cli.Usagef("a question needs --model and --block-size")
		}
		if !asked && (q.model != "" || q.blockSize != 0) {
			return cli.Usagef("--model and --block-size belong to a question; add --tokens or --seq-hashes")
		}
		// Mistakes in the question show before a long journal is read.
		var body []byte
		var path string
		var err error
		switch {
		case asked:
			err = q.readPrompt(cmd.InOrStdin())
		case queryFile != "":
			path, body, err = readBody(queryFile, cmd.InOrStdin())
		}
		if err != nil {
			return err
		}
		var key *keyfile.Key
		if keyFile != "" {
			if key, err = keyfile.Read(keyFile); err != nil {
				return fmt.Errorf("--key-file: %w", err)
			}
		}
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		cmd.SetContext(ctx)
		p, err := readPast(ctx, args[0], key, until, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer p.conductor.Close()
		server := cli.NewClient("http://past", &http.Client{Transport: local{p.apiHandler()}})
		summary := cmd.OutOrStdout()
		if asked || queryFile != "" {
			summary = cmd.ErrOrStderr() // the answer is alone on standard output
		}
		switch {
		case !q.asJSON:
			err = p.printSummary(ctx, server, summary)
		case !asked && queryFile == "":
			err = p.printJSON(ctx, server, summary)
		}
		if err != nil {
			return err
		}
		switch {
		case asked:
			return q.sendAndPrint(cmd, server)
		case queryFile != "":
			var answer json.RawMessage
			if err := server.Do(ctx, http.MethodPost, path, body, &answer); err != nil {
				return err
			}
			return cli.PrintRaw(cmd.OutOrStdout(), append(answer, '\n'))
		case listen != "":
			return p.serveAPI(ctx, listen, cmd.ErrOrStderr())
		}
		return nil
	}
	return cmd
}

// past is a journal that was replayed.
type past struct {
	dir       string
	until     string // what it was replayed to, "" for its end
	target    tape.Target
	runs      tape.Runs
	last      tape.Record // the last one taken, without its payload
	conductor *conductor.Conductor
	sum       replay.Summary
	damage    tape.Damage
	read      int64 // bytes
	odd       int   // records that make no sense
}

// readPast replays a journal. key opens sealed segments.
func readPast(ctx context.Context, dir string, key *keyfile.Key, until string, errs io.Writer) (*past, error) {
	p := &past{dir: dir, until: until}
	m := meter{out: errs}
	var stop tape.Position
	if until != "" {
		var err error
		if p.target, err = tape.ParseTarget(until, time.Now()); err != nil {
			return nil, cli.Usagef("--until: %w", err)
		}
		if stop, p.runs, err = tape.Locate(dir, key, p.target, m.progressOf("looking for "+until)); err != nil {
			return nil, fmt.Errorf("--until: %w", err)
		}
	}
	r, err := tape.Open(dir, key)
	if err != nil {
		return nil, err
	}
	limits := wire.DefaultLimits
	limits.MaxPayload = 1 << 30 // the server's own limit let it through
	var opts conductor.Options
	opts.Log = zerolog.Nop()
	opts.Stream.Decode = func(payload []byte) (events.Batch, error) { return wire.Decode(payload, limits) }
	replay := replay.New(opts)
	show := m.progressOf("replaying")
	var rec tape.Record
	for reached := false; !reached; {
		err := r.Next(&rec)
		if errors.Is(err, io.EOF) {
			if until != "" {
				err = fmt.Errorf("--until: the server removed the records of %s while it was looked for", until)
			} else if replay.Summary().Records == 0 {
				err = fmt.Errorf("%q holds no record that can be read (%s)", dir, damageText(r.Damage()))
			} else {
				break
			}
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			replay.Conductor().Close()
			return nil, err
		}
		if until == "" {
			p.runs.AddRecord(&rec)
		}
		if err := replay.Take(&rec); err != nil {
			if p.odd++; p.odd <= 3 {
				cli.Fprintf(errs, "passed over: %v\n", err)
			}
		}
		show(r.Progress())
		reached = until != "" && rec.At == stop
	}
	p.conductor, p.sum, p.damage = replay.Conductor(), replay.Summary(), r.Damage()
	p.read, _ = r.Progress()
	p.last = tape.Record{Run: rec.Run, Time: rec.Time, At: rec.At}
	return p, nil
}

// stopText returns where the replay stopped, and what follows in the journal.
func (p *past) stopText() string {
	if p.target.Time.IsZero() {
		return "after " + p.until
	}
	text := fmt.Sprintf("at %s, the last record up to %s", formatTime(p.last.Time), formatTime(p.target.Time))
	for i, run := range p.runs.List {
		switch {
		case run.ID != p.last.Run || run.End != p.last.At:
		case i+1 < len(p.runs.List):
			text += fmt.Sprintf("; the run ends there, the next one begins at %s", formatTime(p.runs.List[i+1].First))
		default:
			text += "; the journal ends there"
		}
	}
	return text
}

// formatTime returns a time in the form that --until reads.
func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// meter shows the progress of a replay.
type meter struct {
	out  io.Writer
	last time.Time
	n    uint
}

const (
	meterEvery = 2 * time.Second
	meterLook  = 1024 // records between looks at the clock
)

// progressOf returns a function that prints how much is read, at most every meterEvery. what names the work.
func (m *meter) progressOf(what string) func(read, total int64) {
	m.last = time.Now()
	return func(read, total int64) {
		if m.n++; m.n%meterLook != 0 || time.Since(m.last) < meterEvery {
			return
		}
		m.last = time.Now()
		cli.Fprintf(m.out, "%s: %d%% of %d MiB\n", what, 100*read/max(total, 1), total>>20)
	}
}

// printSummary prints what the journal holds, and the sources as they were.
func (p *past) printSummary(ctx context.Context, server *cli.Client, out io.Writer) error {
	s := p.sum
	cli.Fprintf(out, "journal  %s, %s, %s, runs of the server: %d\n", p.dir, spelling.Count(s.Records, "record"),
		spelling.Count(p.read, "byte"), s.Runs)
	for _, run := range p.runs.List {
		cut := ""
		if run.Cut {
			cut = ", its beginning is gone"
		}
		cli.Fprintf(out, "run      %016x from %s to %s, sources: %d, batches: %d%s\n", run.ID, formatTime(run.First), formatTime(run.Last),
			run.Sources, run.Batches, cut)
	}
	cli.Fprintf(out, "time     %s to %s\n", formatTime(s.First), formatTime(s.Last))
	cli.Fprintf(out, "applied  %s of %s, %s\n", spelling.Count(s.Batches, "batch"), spelling.Count(s.Sources, "registration"),
		spelling.Count(s.Epochs, "reset"))
	cli.Fprintf(out, "missing  %s never arrived, %d could not be decoded; %s not written, %d without a source, %d without sense\n",
		spelling.Count(s.Missing, "batch"), s.Undecodable, spelling.Count(s.Lost, "record"), s.Stray, p.odd)
	cli.Fprintf(out, "damage   %s\n", damageText(p.damage))
	if p.until != "" {
		cli.Fprintf(out, "stopped  %s\n", p.stopText())
	}
	fmt.Fprintln(out)
	services, err := readServices(ctx, server)
	if err != nil {
		return err
	}
	printServices(out, services, &sourceTable{sourceLayout: sourcesOfServer, on: screenOf(out)}, false)
	return nil
}

// printJSON prints what printSummary does, as JSON.
func (p *past) printJSON(ctx context.Context, server *cli.Client, out io.Writer) error {
	var services json.RawMessage
	if err := server.Get(ctx, servicesPath, &services); err != nil {
		return err
	}
	summary := map[string]any{
		"dir": p.dir, "bytes": p.read, "runs": p.runs.List, "summary": p.sum, "senseless_records": p.odd, "damage": p.damage,
		"services": services,
	}
	if p.until != "" {
		summary["stopped"] = p.stopText()
	}
	return cli.PrintJSON(out, summary)
}

func damageText(d tape.Damage) string {
	text := fmt.Sprintf("%s, %s and %s of another kind, %s skipped", spelling.Count(d.Torn, "torn end"),
		spelling.Count(d.Skipped, "stretch"), spelling.Count(d.Foreign, "file"), spelling.Count(d.Bytes, "byte"))
	if d.Unopened > 0 {
		text += fmt.Sprintf(", %s that the key does not open", spelling.Count(d.Unopened, "record"))
	}
	return text
}

// apiHandler returns the handler of the API of the past.
func (p *past) apiHandler() http.Handler {
	limits := config.Default().Limits
	d := dynamo.New(dynamo.Config{Conductor: p.conductor, MaxTokens: limits.MaxTokens, Log: zerolog.Nop()})
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.conductor.Meter(), d, buildInfo())
	return dialectHandler(config.Conductor, p.conductor, d, admin.Options{
		Dialect: conductorhttp.Options{MaxBody: limits.MaxBody, MaxTokens: limits.MaxTokens, Version: version},
		OpenAPI: kvconductor.OpenAPI, Gatherer: printableLabels{registry}, Log: zerolog.Nop(),
	})
}

// serveAPI serves the API of the past until ctx ends.
func (p *past) serveAPI(ctx context.Context, address string, errs io.Writer) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	s := server.NewServer(access.OnlyLocalNames(p.apiHandler()), listenerTimeouts(config.Default().Limits))
	defer context.AfterFunc(ctx, func() { s.Close() })()
	cli.Fprintf(errs, "the past is at http://%s\n", l.Addr())
	if err := s.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

// readBody reads the body of a query as a router sends it, and finds its path.
func readBody(name string, stdin io.Reader) (path string, body []byte, err error) {
	if name == "-" {
		body, err = io.ReadAll(stdin)
	} else {
		body, err = os.ReadFile(name)
	}
	if err != nil {
		return "", nil, fmt.Errorf("--query-file: %w", err)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(body, &keys); err != nil {
		return "", nil, fmt.Errorf("--query-file: %q holds no JSON object: %w", name, err)
	}
	if keys["token_ids"] == nil {
		return "/query_by_hash?detail=1", body, nil
	}
	return "/query?detail=1", body, nil
}

// local carries requests to a handler in this process.
type local struct{ handler http.Handler }

func (l local) RoundTrip(req *http.Request) (*http.Response, error) {
	w := &reply{status: http.StatusOK, header: make(http.Header)}
	l.handler.ServeHTTP(w, req)
	return &http.Response{StatusCode: w.status, Header: w.header, Body: io.NopCloser(&w.body), Request: req}, nil
}

// reply is an answer in memory.
type reply struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *reply) Header() http.Header         { return r.header }
func (r *reply) WriteHeader(status int)      { r.status = status }
func (r *reply) Write(b []byte) (int, error) { return r.body.Write(b) }
