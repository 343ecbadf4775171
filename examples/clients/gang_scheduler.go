// Runs one job on several nodes, or on one: all parts begin, or none; the first part that fails ends the others.
// docs/guides/clients.md says how to build it, docs/guides/schedulers.md explains the steps.
//
//	gang_scheduler train-7 unix:/run/a/muster.sock unix:/run/b/muster.sock -- python3 train.py
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "muster/v1"
)

const (
	ranks    = 2                // of each node
	master   = "127.0.0.1"      // how the ranks reach the first node; here all are on one machine
	port     = 29500            // where they meet there
	answer   = 10 * time.Second // for one call to one daemon
	ready    = 10 * time.Minute // for the checks of all nodes
	patience = 1 * time.Minute  // for a daemon that does not answer, which may be restarting
)

// connect makes the way to one daemon; docs/guides/clients.md says why it needs these options.
func connect(address string) (*grpc.ClientConn, error) {
	pauses := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second}
	return grpc.NewClient(address,
		// Over TCP: credentials.NewTLS with the certificates of both sides.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: answer}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: answer}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
	)
}

// part is what one node does of the job.
type part struct {
	address string
	spec    *musterv1.JobSpec
	jobs    musterv1.JobServiceClient
	logs    musterv1.LogServiceClient
	nodes   musterv1.NodeServiceClient
	mine    bool // this program may have started it
}

// tell has the stable name of an error, for programs, and its text, for people.
func tell(err error) string {
	reason := status.Code(err).String()
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			reason = info.Reason
		}
	}
	return reason + ": " + status.Convert(err).Message()
}

// repeated makes a call until a daemon answers it, for a while: all calls of this program may be made again.
func repeated[Request, Answer any](call func(context.Context, Request, ...grpc.CallOption) (Answer, error), request Request) (Answer, error) {
	until := time.Now().Add(patience)
	for {
		ctx, cancel := context.WithTimeout(caller(), answer)
		got, err := call(ctx, request)
		cancel()
		if !passes(err) || time.Now().After(until) {
			return got, err
		}
		time.Sleep(time.Second)
	}
}

func passes(err error) bool {
	return status.Code(err) == codes.Unavailable || status.Code(err) == codes.DeadlineExceeded
}

func caller() context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "muster-caller", "gang-scheduler")
}

// fit says why a node does not take jobs.
func (p *part) fit() error {
	got, err := repeated(p.nodes.GetNode, &musterv1.GetNodeRequest{})
	if err != nil {
		return fmt.Errorf("%s: %s", p.address, tell(err))
	}
	if got.Node.Drain != nil {
		return fmt.Errorf("%s: drained: %s", p.address, got.Node.Drain.Reason)
	}
	for _, condition := range got.Node.Conditions {
		if condition.Status == "CRITICAL" {
			return fmt.Errorf("%s: %s: %s", p.address, condition.Code, condition.Reason)
		}
	}
	return nil
}

// began says whether ranks of a job may run, or have run.
func began(job *musterv1.Job) bool {
	return job.State != musterv1.JobState_JOB_STATE_ACCEPTED && job.State != musterv1.JobState_JOB_STATE_CHECKING
}

// begin starts all parts, waits until each is ready, and lets their ranks begin.
func begin(parts []*part) error {
	for _, p := range parts {
		if err := p.fit(); err != nil {
			return err
		}
	}
	for _, p := range parts {
		got, err := repeated(p.jobs.Start, &musterv1.StartRequest{Spec: p.spec})
		// Without an answer it may have been started; a job that was there before is not ended if this start fails.
		p.mine = err == nil && !got.AlreadyExisted || passes(err)
		if err == nil && got.AlreadyExisted && began(got.Job) {
			err = status.Errorf(codes.AlreadyExists, "job %s has begun: choose another name", p.spec.JobId)
		}
		if err != nil {
			return fmt.Errorf("%s: %s", p.address, tell(err))
		}
	}
	released, until := false, time.Now().Add(ready)
	for time.Now().Before(until) {
		waiting, unready := []*part{}, 0
		for _, p := range parts {
			got, err := repeated(p.jobs.Get, &musterv1.GetRequest{JobId: p.spec.JobId})
			if err != nil {
				return fmt.Errorf("%s: %s", p.address, tell(err))
			}
			if !began(got.Job) {
				waiting = append(waiting, p)
				if !got.Job.AwaitsRelease {
					unready++
				}
			} else if !released {
				return fmt.Errorf("%s: %s", p.address, got.Job.Verdict.GetSummary())
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		// Once all are ready, and then until all have begun: a daemon that is restarted just then does not remember it.
		if released = released || unready == 0; released {
			for _, p := range waiting {
				if _, err := repeated(p.jobs.Release, &musterv1.ReleaseRequest{JobId: p.spec.JobId}); err != nil {
					return fmt.Errorf("%s: %s", p.address, tell(err))
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("not ready within %s", ready)
}

// stop orders these parts to stop, and does not wait for their end.
func stop(parts []*part, why string) {
	for _, p := range parts {
		request := &musterv1.StopRequest{JobId: p.spec.JobId, Reason: why, Timeout: durationpb.New(0)}
		if _, err := repeated(p.jobs.Stop, request); err != nil && status.Code(err) != codes.NotFound {
			fmt.Fprintf(os.Stderr, "%s: may run on: %s\n", p.address, tell(err))
		}
	}
}

// undo ends and removes what this program has started, so that nothing is left of a start that failed.
func undo(parts []*part) {
	for _, p := range parts {
		if !p.mine {
			continue
		}
		request := &musterv1.StopRequest{JobId: p.spec.JobId, Reason: "another node did not start", Grace: durationpb.New(2 * time.Second)}
		_, err := repeated(p.jobs.Stop, request)
		if err == nil {
			_, err = repeated(p.jobs.Delete, &musterv1.DeleteRequest{JobId: p.spec.JobId})
		}
		if err != nil && status.Code(err) != codes.NotFound {
			fmt.Fprintf(os.Stderr, "%s: may still exist: %s\n", p.address, tell(err))
		}
	}
}

// copyOutput passes output on, and goes on at the byte where it was cut.
func (p *part) copyOutput() {
	offsets := map[uint32]uint64{}
	for last := time.Now(); time.Since(last) < patience; time.Sleep(time.Second) {
		stream, err := p.logs.ReadLogs(caller(), &musterv1.ReadLogsRequest{JobId: p.spec.JobId, Follow: true, Offsets: offsets})
		for err == nil {
			var message *musterv1.ReadLogsResponse
			if message, err = stream.Recv(); err == nil {
				if message.Eof {
					return
				}
				last = time.Now()
				os.Stdout.Write(message.Data)
				offsets[message.Rank] = message.Offset + uint64(len(message.Data))
			}
		}
		if err != io.EOF && status.Code(err) != codes.Unavailable {
			fmt.Fprintf(os.Stderr, "%s: output ends: %s\n", p.address, tell(err))
			return
		}
	}
}

// wait returns the job when it has ended.
func (p *part) wait() (*musterv1.Job, error) {
	for {
		got, err := repeated(p.jobs.Wait, &musterv1.WaitRequest{JobId: p.spec.JobId, Timeout: durationpb.New(answer / 2)})
		if err != nil || got.Ended {
			return got.GetJob(), err
		}
	}
}

// end waits for all parts, and ends the others when one has failed; the exit code of the first that did.
func end(parts []*part) int {
	var first sync.Once
	var all sync.WaitGroup
	code := 0
	for i, p := range parts {
		all.Add(2)
		go func() { defer all.Done(); p.copyOutput() }()
		go func() {
			defer all.Done()
			job, err := p.wait()
			if err == nil && job.State == musterv1.JobState_JOB_STATE_SUCCEEDED {
				return
			}
			first.Do(func() {
				if code = 125; err != nil {
					fmt.Fprintf(os.Stderr, "%s: given up: %s\n", p.address, tell(err))
				} else {
					code = max(int(job.Verdict.ExitCode), 1)
					fmt.Fprintf(os.Stderr, "%s: %s\n", p.address, job.Verdict.Summary)
				}
				stop(slices.Delete(slices.Clone(parts), i, i+1), "the part on "+p.address+" has ended")
			})
		}()
	}
	all.Wait()
	return code
}

func main() {
	dashes := slices.Index(os.Args, "--")
	if dashes < 3 || dashes+1 == len(os.Args) {
		fmt.Fprintln(os.Stderr, "usage: gang_scheduler NAME ADDRESS... -- COMMAND...")
		os.Exit(2)
	}
	name, addresses, parts := os.Args[1], os.Args[2:dashes], []*part{}
	for i, address := range addresses {
		rank := uint32(i)
		connection, err := connect(address)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		parts = append(parts, &part{
			address: address,
			jobs:    musterv1.NewJobServiceClient(connection),
			logs:    musterv1.NewLogServiceClient(connection),
			nodes:   musterv1.NewNodeServiceClient(connection),
			// The same in each call, so that a repeated Start finds what there is. The labels are for `muster run --attach`.
			spec: &musterv1.JobSpec{
				JobId: name, Command: os.Args[dashes+1:], Ranks: ranks, Hold: true,
				NodeRank: &rank, NodeCount: uint32(len(addresses)), MasterAddr: master, MasterPort: port,
				Labels: map[string]string{
					"muster-gang": name, "muster-gang-part": fmt.Sprint(i),
					"muster-gang-size": fmt.Sprint(len(addresses)), "muster-gang-attempt": "0",
				},
			},
		})
	}
	if err := begin(parts); err != nil {
		fmt.Fprintf(os.Stderr, "not started: %s\n", err)
		undo(parts)
		os.Exit(125)
	}
	os.Exit(end(parts))
}
