package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/spelling"
)

// changedRank is what became of one rank that register or unregister named.
type changedRank struct {
	Instance string `json:"instance_id"`
	Tenant   string `json:"tenant_id"`
	Rank     int    `json:"dp_rank"`
	Endpoint string `json:"endpoint,omitempty"`
	Replay   string `json:"replay_endpoint,omitempty"`
	Result   string `json:"result"` // registered, unregistered, refused, or not asked
	State    string `json:"state,omitempty"`
	Reason   string `json:"reason,omitempty"` // of the state, or of the refusal
	// Findings of severity error: answers about the rank are wrong, or lack something.
	Findings []client.ServiceFinding `json:"findings,omitempty"`

	advice string // what to do about the state, "" if it is synced
	empty  bool   // the rank is synced and has announced nothing
}

const (
	resultRegistered   = "registered"
	resultUnregistered = "unregistered"
	resultRefused      = "refused"
	resultNotAsked     = "not asked" // because the server did not answer for a rank before
)

// stateText returns the state of the rank, or the result of its registration, with the reason if there is one.
func (r *changedRank) stateText() string {
	text := cmp.Or(r.State, r.Result)
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	for _, f := range r.Findings {
		text += ", " + f.Code
	}
	return text
}

// fault returns the sentence that explains why a registered rank is not healthy and how to mend it, "" if it is healthy.
func (r *changedRank) fault() string {
	if len(r.Findings) > 0 {
		return r.Findings[0].Message
	}
	return r.advice
}

// readState sets what the row of a source says of the rank.
func (r *changedRank) readState(s *client.Service, unclaimed []topicRow) {
	r.State, r.Reason, r.advice, r.Findings = s.State, cmp.Or(s.Reason, s.LastError), "", nil
	if !stream.State(s.State).Ready() {
		text, cause := adviceOn(s, unclaimed)
		r.advice = text + cause
	}
	for _, f := range s.Findings {
		if f.Severity == string(doctor.Error) && f.Code != s.State {
			r.Findings = append(r.Findings, f)
		}
	}
	r.empty = r.advice == "" && len(r.Findings) == 0 && s.Blocks == 0 && s.Events != registration.EventsNone
}

// registerFlags are the flags of register.
type registerFlags struct {
	instance, tenant, model, kind, blockSize, ranks, replayEndpoint, lora, salt string
	replayPort                                                                  int
	replace, wait, asJSON                                                       bool
	timeout                                                                     time.Duration
	set                                                                         []string
}

func registerCommand() *cobra.Command {
	var asks cli.ClientFlags
	var f registerFlags
	cmd := &cobra.Command{
		Use:        "register [ENGINE]",
		SuggestFor: []string{"add", "follow"},
		Short:      "Let a running server follow an engine, with all its ranks",
		Long: `Registers an instance with a running server and shows a line for each of its ranks.
ENGINE is one of:

  http://engine:8000     the address where the engine answers requests. The server asks it
                         where its ranks publish, and its model. The instance is called
                         engine:8000 unless you give --instance.
  tcp://10.0.0.1:5557    the address where rank 0 publishes its events. Engines add the rank
                         to the port, so with --ranks 8 the others are at 5558 to 5564, and
                         at --replay-port plus the rank for replays.
  bind:tcp://*:5557      an address of the server that the engine connects to. All ranks
                         share it. The server's register.allow has to name it.
  push:                  nothing to connect to: LMCache reports over HTTP.

Leave ENGINE out for an engine that publishes no events (--set events=none).

--set sends any other field of POST /register. Its value is read as JSON if it is JSON, and
as text otherwise: --set ttl=10m, --set 'aliases=["a","b"]'.

Ranks that are registered already stay as they are, so you can repeat the command after a failure.
A registration over HTTP lives as long as the server does, unless the server keeps
snapshots or shares a store with others. The exit status is 1 if a rank was refused or,
with --wait, is not synced in time or has a finding of severity error.`,
		Example: "  conductor register http://engine:8000\n" +
			"  conductor register http://engine:8000 --instance prefill-1 --wait\n" +
			"  conductor register tcp://10.0.0.1:5557 --instance prefill-1 --model deepseek --block-size 16 --ranks 8 --replay-port 6557 " +
			"--type vLLM",
		Args: cobra.MaximumNArgs(1),
	}
	asks.Add(cmd, true)
	fs := cmd.Flags()
	fs.StringVar(&f.instance, "instance", "", "`name` of the instance, as routers know it")
	fs.StringVar(&f.tenant, "tenant", "", "tenant `name` (default \"default\")")
	fs.StringVar(&f.model, "model", "", "model `name`, as in queries")
	fs.StringVar(&f.kind, "type", "", "what publishes: vLLM, SGLang, Mooncake, LMCache or Standard")
	fs.StringVar(&f.blockSize, "block-size", "", "`tokens` per block, or auto to learn it from the engine (the default)")
	fs.StringVar(&f.ranks, "ranks", "", "how many data-parallel ranks the engine has, or `A-B` for some of them (default 1)")
	fs.IntVar(&f.replayPort, "replay-port", 0, "`port` where rank 0 serves replays, on the host of ENGINE")
	fs.StringVar(&f.replayEndpoint, "replay-endpoint", "", "`endpoint` where rank 0 serves replays, if it is another host")
	fs.StringVar(&f.lora, "lora", "", "adapter `name`")
	fs.StringVar(&f.salt, "salt", "", "salt that the engine adds to all its prompts")
	fs.BoolVar(&f.replace, "replace", false, "take the place of a registration of the same name that differs")
	fs.StringArrayVar(&f.set, "set", nil, "`field=value` of POST /register; may be given again")
	fs.BoolVar(&f.wait, "wait", false, "wait until all ranks are synced, and explain those that are not healthy")
	fs.DurationVar(&f.timeout, "timeout", time.Minute, "how long --wait waits")
	fs.BoolVar(&f.asJSON, "json", false, "print what became of each rank as a JSON array")
	cmd.MarkFlagsMutuallyExclusive("replay-port", "replay-endpoint")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		engine := ""
		if len(args) > 0 {
			engine = args[0]
		}
		bodies, err := f.requestBodies(engine)
		if err != nil {
			return cli.Usagef("%w", err)
		}
		server, err := asks.Client()
		if err != nil {
			return err
		}
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		r := &registering{server: server, instance: fmt.Sprint(bodies[0]["instance_id"]), tenant: cmp.Or(f.tenant, "default"),
			asked: bodies[0]["discover"] != nil, only: f.only(), errs: cmd.ErrOrStderr()}
		failed := r.sendBodies(ctx, bodies)
		if failed == nil {
			failed = r.followRanks(ctx, f.wait, f.timeout)
		}
		if err := printRanks(cmd.OutOrStdout(), r.ranks, f.asJSON, true); err != nil {
			return err
		}
		return failed
	}
	return cmd
}

// only says which fields queries need because of the registration, "" if none.
func (f *registerFlags) only() string {
	var all []string
	for _, field := range []struct{ name, value string }{{"tenant_id", f.tenant}, {"lora_name", f.lora}, {"cache_salt", f.salt}} {
		if field.value != "" && (field.name != "tenant_id" || field.value != "default") {
			all = append(all, fmt.Sprintf("%s %q", field.name, field.value))
		}
	}
	return strings.Join(all, " and ")
}

// requestBodies returns the bodies of POST /register: one for each rank, or a single one if the engine tells its ranks.
func (f *registerFlags) requestBodies(engine string) ([]map[string]any, error) {
	body := map[string]any{}
	for name, value := range map[string]string{"instance_id": f.instance, "tenant_id": f.tenant, "modelname": f.model, "type": f.kind,
		"lora_name": f.lora, "additionalsalt": f.salt, "replay_endpoint": f.replayEndpoint} {
		if value != "" {
			body[name] = value
		}
	}
	if f.replace {
		body["replace"] = true
	}
	if n, err := strconv.Atoi(f.blockSize); err == nil {
		body["block_size"] = n
	} else if f.blockSize != "" && f.blockSize != "auto" {
		return nil, fmt.Errorf("--block-size: %q is neither a number of tokens nor auto", f.blockSize)
	}
	for _, pair := range f.set {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--set: %q is not of the form field=value", pair)
		}
		if flag := flagOf[name]; flag != "" { // it is compared with what the server says
			return nil, fmt.Errorf("--set: %s is set by %s", name, flag)
		}
		body[name] = value
		if json.Valid([]byte(value)) {
			body[name] = json.RawMessage(value)
		}
	}
	engine = strings.TrimSpace(engine)
	if scheme, _, _ := strings.Cut(engine, "://"); strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https") {
		if f.ranks != "" || f.replayPort != 0 || f.replayEndpoint != "" {
			return nil, fmt.Errorf("%s tells how many ranks it has and where they publish: leave --ranks, --replay-port and "+
				"--replay-endpoint out", engine)
		}
		u, err := url.Parse(engine)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("%q is no URL of an engine", engine)
		}
		body["discover"] = engine
		if body["instance_id"] == nil {
			body["instance_id"] = u.Host
		}
		return []map[string]any{body}, nil
	}
	_, silent := body["events"]
	switch {
	case engine == "" && !silent:
		return nil, errors.New("no engine: name it as http://host:port, or by the endpoint of its events, as tcp://host:port")
	case engine != "" && !strings.Contains(engine, "://") && engine != "push:":
		return nil, fmt.Errorf("%q has no scheme: write http://%s for the address of the engine's API, or tcp://%s for that of its events",
			engine, engine, engine)
	}
	var missing []string
	for _, need := range []struct{ field, flag string }{{"instance_id", "--instance"}, {"modelname", "--model"}, {"type", "--type"}} {
		if body[need.field] == nil {
			missing = append(missing, need.flag)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("only an engine that is asked over http:// tells what it is: add %s", strings.Join(missing, ", "))
	}
	if body["block_size"] == nil && engine != "push:" && !silent {
		body["block_size"] = "auto"
	}
	return f.perRank(engine, body)
}

// flagOf has the fields of POST /register that --set does not set, and what does.
var flagOf = map[string]string{
	"instance_id": "--instance", "tenant_id": "--tenant", "dp_rank": "--ranks, as in --ranks 3-3", "endpoint": "the argument ENGINE",
	"discover": "the argument ENGINE", "replay_endpoint": "--replay-endpoint", "block_size": "--block-size", "modelname": "--model",
	"type": "--type",
}

// perRank returns the body of each rank. The endpoints are those of rank 0.
func (f *registerFlags) perRank(engine string, body map[string]any) ([]map[string]any, error) {
	first, last, err := rankRange(f.ranks)
	if err != nil {
		return nil, err
	}
	replay := f.replayEndpoint
	if f.replayPort != 0 {
		host, _, err := net.SplitHostPort(strings.TrimPrefix(engine, "tcp://"))
		if err != nil || !strings.HasPrefix(engine, "tcp://") {
			return nil, fmt.Errorf("--replay-port: %q has no host to serve replays: use --replay-endpoint", engine)
		}
		replay = "tcp://" + net.JoinHostPort(host, strconv.Itoa(f.replayPort))
	}
	var all []map[string]any
	for rank := first; rank <= last; rank++ {
		one := maps.Clone(body)
		for field, base := range map[string]string{"endpoint": engine, "replay_endpoint": replay} {
			if base == "" {
				continue
			}
			if one[field], err = endpointOf(base, rank); err != nil {
				return nil, err
			}
		}
		if f.ranks != "" || strings.Contains(engine, "://") {
			one["dp_rank"] = rank
		}
		all = append(all, one)
	}
	return all, nil
}

// maxRanks is the most ranks of one command. Real instances have fewer than a hundred.
const maxRanks = 4096

// rankRange reads --ranks: a number of ranks, or the first and the last one.
func rankRange(text string) (first, last int, err error) {
	if text == "" {
		return 0, 0, nil
	}
	from, to, isRange := strings.Cut(text, "-")
	first, wrong := strconv.Atoi(from)
	if last = first; isRange && wrong == nil {
		last, wrong = strconv.Atoi(to)
	} else if wrong == nil {
		first, last = 0, first-1
	}
	if wrong != nil || first < 0 || last < first || last-first >= maxRanks {
		return 0, 0, fmt.Errorf("--ranks: %q is neither a number of ranks, 1 to %d, nor a range such as 4-7", text, maxRanks)
	}
	return first, last, nil
}

// endpointOf returns the endpoint of a rank, given that of rank 0. Engines add the rank to the port.
func endpointOf(base string, rank int) (string, error) {
	at, isTCP := strings.CutPrefix(base, "tcp://")
	if rank == 0 || strings.HasPrefix(base, "bind:") {
		return base, nil
	}
	host, text, err := net.SplitHostPort(at)
	port, wrong := strconv.Atoi(text)
	if !isTCP || err != nil || wrong != nil {
		return "", fmt.Errorf("%s has no port to add rank %d to: register each rank by its own endpoint", base, rank)
	}
	if port += rank; port > 65535 {
		return "", fmt.Errorf("rank %d of %s would be at port %d, and the highest is 65535", rank, base, port)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// registering is one call of register.
type registering struct {
	server           *cli.Client
	instance, tenant string
	asked            bool   // the engine tells its ranks
	only             string // what queries must have to find its blocks, beside the model; "" if nothing
	ranks            []changedRank
	errs             io.Writer
}

// sendBodies sends the bodies. After one that is refused it goes on, because the reason may lie in that rank. It stops at an
// error that all the others would meet too.
func (r *registering) sendBodies(ctx context.Context, bodies []map[string]any) error {
	var stopped error
	var bad []string
	told := make(map[string]bool)
	for _, body := range bodies {
		rank, _ := body["dp_rank"].(int)
		replay, _ := body["replay_endpoint"].(string)
		endpoint, _ := body["endpoint"].(string)
		one := changedRank{Instance: r.instance, Tenant: r.tenant, Rank: rank, Endpoint: endpoint, Replay: replay, Result: resultNotAsked}
		if stopped == nil {
			var said struct {
				Warnings []string
				Durable  *bool
			}
			err := r.server.Post(ctx, "/conductor/v1/register", body, &said)
			switch why := (*cli.RefusedError)(nil); {
			case err == nil:
				one.Result = resultRegistered
			case errors.As(err, &why) && why.Status != http.StatusUnauthorized && why.Status != http.StatusForbidden &&
				why.Status != http.StatusNotFound:
				one.Result, one.Reason = resultRefused, why.Said()
				if strings.Contains(one.Reason, "is registered with another ") && body["replace"] == nil {
					one.Reason += "; --replace puts this registration in its place"
				}
				bad = append(bad, strconv.Itoa(rank))
			default:
				stopped = err
			}
			if said.Durable != nil && !*said.Durable {
				said.Warnings = append(said.Warnings,
					"only the memory of the server has this registration: register again if the server restarts")
			}
			for _, w := range said.Warnings {
				if !told[w] {
					told[w] = true
					cli.Fprintln(r.errs, "warning:", w)
				}
			}
		}
		r.ranks = append(r.ranks, one)
	}
	if stopped == nil && len(bad) > 0 {
		stopped = rankError(r.ranks, bad, resultRefused)
	}
	return stopped
}

// rankError returns an error that says which ranks failed, and how.
func rankError(all []changedRank, bad []string, how string) error {
	if len(all) == 1 {
		return fmt.Errorf("%s is %s: %s", all[0].Instance, how, all[0].Reason)
	}
	return fmt.Errorf("%d of %d ranks of %s are %s: %s", len(bad), len(all), all[0].Instance, how, strings.Join(bad, ", "))
}

const (
	// followEvery is the pause between two looks at the sources.
	followEvery = 200 * time.Millisecond
	// askedWithin is how long register waits until an engine has told its ranks. Engines that run take
	// milliseconds.
	askedWithin = 5 * time.Second
)

// followRanks reads the states of the ranks: once, or until an engine that is asked has told its ranks. With wait it goes on
// until no rank will change by itself, or until timeout, and its error says which ranks are not synced.
func (r *registering) followRanks(ctx context.Context, wait bool, timeout time.Duration) error {
	ends := time.Now().Add(askedWithin)
	if wait {
		ends = time.Now().Add(timeout)
	}
	shown := newProgress(r.errs)
	for {
		fault, err := r.readStates(ctx)
		if refusal := (*cli.RefusedError)(nil); !wait && errors.As(err, &refusal) {
			return nil // a client that may register need not be one that may ask
		}
		if err != nil {
			shown.clear()
			return err
		}
		over := !wait
		if wait {
			over = len(r.ranks) > 0 && !slices.ContainsFunc(r.ranks, func(c changedRank) bool { return !isSettled(c.State) })
		} else if r.asked && len(r.ranks) == 0 && fault == "" {
			over = false
		}
		late := !time.Now().Before(ends)
		if over || late {
			shown.clear()
			return r.followError(wait, late && !over, fault, timeout)
		}
		shown.show(r.progressText())
		select {
		case <-ctx.Done():
			shown.clear()
			return errors.New("interrupted: ranks that are registered already stay")
		case <-time.After(followEvery):
		}
	}
}

// isSettled reports whether a source in a state changes only if the engine does something.
func isSettled(state string) bool {
	return stream.State(state).Ready() || state == string(stream.Partial) || state == string(stream.Failed) ||
		state == string(stream.Paused)
}

// readStates reads the states of the ranks. fault is why an engine that is asked has not told its ranks.
func (r *registering) readStates(ctx context.Context) (fault string, err error) {
	var all servicesAnswer
	if err := r.server.Get(ctx, "/conductor/v1/services", &all); err != nil {
		return "", err
	}
	learning := make(map[int]bool) // ranks whose block size the server will learn from their first events
	for _, d := range all.Discovery {
		if d.InstanceID == r.instance && d.TenantID == r.tenant {
			fault = d.LastError
			if d.DPRank != nil {
				learning[*d.DPRank] = true
			}
		}
	}
	if r.asked {
		r.ranks = nil
		for _, s := range all.Services {
			if s.TenantID == r.tenant && registration.IsInstanceOf(s.InstanceID, r.instance) {
				r.ranks = append(r.ranks, changedRank{Instance: s.InstanceID, Tenant: s.TenantID, Rank: s.DPRank, Endpoint: s.Endpoint,
					Replay: s.ReplayEndpoint, Result: resultRegistered})
				r.ranks[len(r.ranks)-1].readState(&s, all.Unclaimed)
			}
		}
		return fault, nil
	}
	for i := range r.ranks {
		at := slices.IndexFunc(all.Services, func(s client.Service) bool {
			return s.InstanceID == r.instance && s.TenantID == r.tenant && s.DPRank == r.ranks[i].Rank
		})
		if at >= 0 {
			r.ranks[i].readState(&all.Services[at], all.Unclaimed)
		} else if learning[r.ranks[i].Rank] {
			r.ranks[i].State, r.ranks[i].Reason = "waiting", fault // fault is empty until the first attempt has failed
		}
	}
	return fault, nil
}

// followError returns the error with which followRanks ends. late says that it gave up.
func (r *registering) followError(wait, late bool, fault string, timeout time.Duration) error {
	if r.asked && len(r.ranks) == 0 {
		text := fmt.Sprintf("%s is registered, and has not told yet where it publishes", r.instance)
		if fault != "" {
			text += ": " + fault
		}
		if wait {
			return errors.New(text)
		}
		cli.Fprintln(r.errs, "warning: "+text+"; the server goes on asking it")
	}
	if !wait {
		return nil
	}
	var bad []string
	var text string
	for i := range r.ranks {
		c := &r.ranks[i]
		switch fault := c.fault(); {
		case fault != "" || !stream.State(c.State).Ready():
			bad = append(bad, strconv.Itoa(c.Rank))
			if text = cmp.Or(text, fault, c.Reason); len(r.ranks) > 1 && len(bad) == 1 {
				text = fmt.Sprintf("rank %d: %s", c.Rank, text)
			}
		case c.empty && len(bad) == 0:
			text = cmp.Or(text, "nothing has been announced yet")
		}
	}
	if len(bad) == 0 {
		if r.only != "" {
			cli.Fprintln(r.errs, "synced: only queries with "+r.only+" find its blocks")
		}
		if text != "" {
			cli.Fprintln(r.errs, "synced, and "+text+`: whether the events fit the registration shows with the first of them `+
				`("conductor doctor")`)
		}
		return nil
	}
	err := fmt.Errorf("%s is not healthy: %s", r.instance, text)
	if len(r.ranks) > 1 {
		err = fmt.Errorf("%d of %d ranks of %s are not healthy: %s; %s", len(bad), len(r.ranks), r.instance, strings.Join(bad, ", "), text)
	}
	if late {
		return fmt.Errorf("%w; --wait gave up after %s (--timeout)", err, timeout)
	}
	return err
}

// progressText returns how many ranks are in which state, as text.
func (r *registering) progressText() string {
	counts := make(map[string]int)
	for _, c := range r.ranks {
		counts[cmp.Or(c.State, c.Result)]++
	}
	if len(counts) == 0 {
		return "waiting for " + r.instance + " to tell where it publishes"
	}
	parts := []string{fmt.Sprintf("%d of %s synced", counts[string(stream.Synced)], spelling.Count(len(r.ranks), "rank"))}
	for _, state := range slices.Sorted(maps.Keys(counts)) {
		if state != string(stream.Synced) {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	return strings.Join(parts, ", ")
}

// progressLine is a line of a terminal that show overwrites each time.
type progressLine struct {
	out   io.Writer // nil where there is no terminal
	shown bool
}

func newProgress(out io.Writer) *progressLine {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return &progressLine{out: out}
	}
	return &progressLine{}
}

// show writes the line, if there is a terminal.
func (p *progressLine) show(text string) {
	if p.out != nil {
		p.shown = true
		cli.Fprintf(p.out, "\r\x1b[K%s", text)
	}
}

// clear removes the line.
func (p *progressLine) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// printRanks prints one line a rank, or JSON.
func printRanks(out io.Writer, all []changedRank, asJSON, replays bool) error {
	if asJSON {
		return cli.PrintJSON(out, append([]changedRank{}, all...))
	}
	if len(all) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if replays {
		fmt.Fprintln(w, "INSTANCE\tTENANT\tRANK\tENDPOINT\tREPLAY\tSTATE")
	} else {
		fmt.Fprintln(w, "INSTANCE\tTENANT\tRANK\tENDPOINT\tRESULT")
	}
	for i := range all {
		r := &all[i]
		cli.Fprintf(w, "%s\t%s\t%d\t%s\t", r.Instance, r.Tenant, r.Rank, cmp.Or(r.Endpoint, "-"))
		if replays {
			cli.Fprintf(w, "%s\t", cmp.Or(r.Replay, "none"))
		}
		cli.Fprintf(w, "%s\n", r.stateText())
	}
	return w.Flush()
}
