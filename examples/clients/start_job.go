// Starts a job, waits for its end, and exits with its code: docs/guides/clients.md.
//
//	go run start_job.go unix:/run/muster/muster.sock train-7 python3 train.py
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	musterv1 "muster/v1"
)

// reason is the stable name of an error, for programs.
func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return status.Code(err).String()
}

// copyOutput passes output on, and goes on at the byte where it was cut.
func copyOutput(ctx context.Context, logs musterv1.LogServiceClient, job string) error {
	offsets := map[uint32]uint64{}
	for {
		stream, err := logs.ReadLogs(ctx, &musterv1.ReadLogsRequest{JobId: job, Follow: true, Offsets: offsets})
		for err == nil {
			var message *musterv1.ReadLogsResponse
			if message, err = stream.Recv(); err == nil {
				if message.Eof {
					return nil
				}
				os.Stdout.Write(message.Data)
				offsets[message.Rank] = message.Offset + uint64(len(message.Data))
			}
		}
		if err != io.EOF && status.Code(err) != codes.Unavailable {
			return err
		}
		time.Sleep(time.Second)
	}
}

func run(address, job string, command []string) (int, error) {
	ctx := context.Background()
	connection, err := grpc.Dial(address, grpc.WithInsecure())
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	jobs := musterv1.NewJobServiceClient(connection)
	ranks := uint32(2)
	// With an id of ours the call may be repeated.
	spec := &musterv1.JobSpec{JobId: job, Command: command, Ranks: ranks}
	if _, err := jobs.Start(ctx, &musterv1.StartRequest{Spec: spec}); err != nil {
		return 0, err
	}
	if err := copyOutput(ctx, musterv1.NewLogServiceClient(connection), job); err != nil {
		return 0, err
	}
	answer, err := jobs.Wait(ctx, &musterv1.WaitRequest{JobId: job})
	if err != nil {
		return 0, err
	}
	fmt.Fprintln(os.Stderr, answer.Job.Verdict.Summary)
	return int(answer.Job.Verdict.ExitCode), nil
}

func main() {
	code, err := run(os.Args[1], os.Args[2], os.Args[3:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", reason(err), status.Convert(err).Message())
		code = 125
	}
	os.Exit(code)
}
