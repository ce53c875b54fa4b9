#!/usr/bin/env bash
# What a message costs through darwinkit and in C, on Linux: darwinkit's own
# objc.Call, reflection and libffi, over GCC's Objective-C runtime, with a
# receiver whose methods return at once. Of darwinkit's package objc this takes
# call.go, object.go, object.m, type_convertion.go, sync_cache.go and ffi as they
# are; what they name of classes, strings and blocks is in place/, since GCC's
# runtime has neither Foundation nor blocks. Needs clang-19, gobjc, libffi-dev.
#
#	./run.sh -bench . -cpu 1 -count 5
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(cd "$here" && go list -m -f '{{.Version}}' github.com/progrium/darwinkit)
from=$(go mod download -json "github.com/progrium/darwinkit@$version" | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p objc/ffi bench include/objc include/ffi
cp "$from"/objc/{object.go,object.m,type_convertion.go,type_convertion.h,sync_cache.go,type_def.go} objc/
cp "$from"/objc/ffi/ffi.go "$from"/objc/ffi/ffi.m objc/ffi/
# Call itself; what follows it adds methods to classes.
sed -e '/^\/\/ AddMethod adds/,$d' -e '/"runtime\/cgo"/d' -e '/"strings"/d' "$from/objc/call.go" >objc/call.go
cp "$here"/place/objc.* objc/
cp "$here"/place/NSObject.h include/objc/
cp "$here"/place/bench* bench/
cp "$here"/place/encoder.* bench/
for f in objc/objc bench/bench bench/bench_test; do mv $f.go.txt $f.go; done
for f in objc/objc bench/encoder; do mv $f.m.txt $f.m; done
echo '#include <ffi.h>' >include/ffi/ffi.h
printf 'module github.com/progrium/darwinkit\n\ngo 1.26\n' >go.mod
libraries=(/usr/lib/gcc/*/*/libobjc.so)
gcc=$(dirname "${libraries[-1]}")
export CGO_ENABLED=1 CC=clang-19 CGO_LDFLAGS="-L$gcc -lobjc"
export CGO_CFLAGS="-O2 -I$work/include -idirafter $gcc/include -Wno-everything"
go test "$@" ./bench
