#!/usr/bin/env bash
# Runs the tests of this module on Linux: darwinkit's own Go code, its reflection
# and libffi, over GCC's Objective-C runtime, sends messages to the software Metal
# of internal/metal/soft. Darwinkit's C files that need Foundation are left out;
# the tests use strings, but no collections. It needs clang-19, gobjc,
# libblocksruntime-dev and libffi-dev.
#
#	./run.sh -v
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
cd "$root/examples/darwinkit"
module=github.com/progrium/darwinkit
from=$(go list -m -f '{{.Dir}}' $module)
[ -n "$from" ] || from=$(go mod download -json $module | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
work=${TMPDIR:-/tmp}/pianola-darwinkit-$(id -u) # the same each time, for the build cache
exec 9>"$work.lock"
flock 9
rm -rf "$work"
mkdir -p "$work"
kit=$work/darwinkit
libraries=(/usr/lib/gcc/*/*/libobjc.so)
gcc=$(dirname "${libraries[-1]}")
flags="-I$work/include -idirafter $gcc/include -Wno-everything -fblocks"
for d in dispatch kernel objc objc/ffi macos/{corefoundation,iosurface,coregraphics,coremedia,foundation,metal}; do
	mkdir -p "$kit/$d"
	cp "$from/$d"/*.go "$kit/$d/"
	rm -f "$kit/$d"/*_test.go
	sed -i "s,-framework [A-Za-z]*,,g; s,-l ffi,-lffi,; s,#cgo CFLAGS: -x objective-c,#cgo CFLAGS: -x objective-c $flags," "$kit/$d"/*.go
done
cp "$from"/objc/{object,class,protocol,runtime_utils,block}.m "$from"/objc/*.h "$kit/objc/"
cp "$from"/objc/ffi/ffi.m "$kit/objc/ffi/"
cp "$here/objc.m.txt" "$kit/objc/missing.m"
cp "$here/dispatch.c.txt" "$kit/dispatch/missing.c"
mkdir -p "$work"/include/{objc,ffi,dispatch}
cp "$here"/{NSObject,runtime}.h "$work/include/objc/"
echo '#include <ffi.h>' >"$work/include/ffi/ffi.h"
: >"$work/include/dispatch/dispatch.h"
printf 'module %s\n\ngo 1.26\n' $module >"$kit/go.mod"

sed "s,=> ../..,=> $root," go.mod >"$work/go.mod"
cp go.sum "$work/"
go mod edit -replace "$module=$kit" "$work/go.mod"
export CGO_ENABLED=1 CC=clang-19 CGO_LDFLAGS="-lobjc -lBlocksRuntime" CGO_CFLAGS_ALLOW='-idirafter|/.*'
go vet -modfile="$work/go.mod" -tags softmetal ./...
go test -modfile="$work/go.mod" -tags softmetal "$@" ./...
