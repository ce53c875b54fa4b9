#!/usr/bin/env bash
# Builds the app for devices as build/ios/Pianola.app, without a signature. It needs a Mac with
# Xcode.
set -euo pipefail
cd "$(dirname "$0")/../.."
sdk=$(xcrun --sdk iphoneos --show-sdk-path)
clang=$(xcrun --sdk iphoneos --find clang)
flags=(-arch arm64 -isysroot "$sdk" -miphoneos-version-min=17.0 -O2)
app=build/ios/Pianola.app
mkdir -p "$app"

# The tag leaves the CUDA device and its kernels out.
GOOS=ios GOARCH=arm64 CGO_ENABLED=1 CC=$clang CGO_CFLAGS="${flags[*]}" CGO_LDFLAGS="${flags[*]}" \
	go build -tags nocuda -trimpath -buildmode=c-archive -o build/ios/libpianola.a ./examples/c

# On macOS the device needs IOKit too, for the number of GPU cores. Security and libresolv are for
# Go's packages.
frameworks=()
for name in Foundation UIKit Metal CoreGraphics CoreFoundation Security; do
	frameworks+=(-framework "$name")
done
"$clang" "${flags[@]}" -fobjc-arc -Wall -I examples/c "${frameworks[@]}" -lresolv \
	-o "$app/Pianola" examples/ios/main.m build/ios/libpianola.a
cp examples/ios/Info.plist "$app/"
cp testdata/gopher-q8_0.gguf "$app/model.gguf"
echo "$app"
