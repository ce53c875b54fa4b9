// Command pianola runs, measures and inspects transformer models as dispatch
// tables.
//
// It has one file a subcommand; each turns flags into calls of package pianola
// and the packages below it, and results into text or JSON. What a model, a
// table or a device is must stay in those packages.
package main

import (
	"context"
	"os"
	"os/signal"
)

func main() {
	// The first interrupt ends the work at hand, a second one the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
