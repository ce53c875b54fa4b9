// Command pianola runs, measures and inspects transformer models as dispatch
// tables.
//
// Each subcommand has its own file, which converts flags to calls of package pianola and the
// packages below it, and results to text or JSON. Knowledge about models, tables and devices
// belongs in those packages, not here.
package main

import (
	"context"
	"os"
	"os/signal"
)

func main() {
	// The first interrupt cancels the command's context, the second one ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
