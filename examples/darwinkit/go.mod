module github.com/pianola-engine/pianola/examples/darwinkit

go 1.26.0

require (
	github.com/pianola-engine/pianola v0.0.0
	github.com/progrium/darwinkit v0.5.0
)

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/gofrs/flock v0.13.0 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/pianola-engine/pianola => ../..
