# Every target says what it proves or makes. docs/TESTING.md describes which tests
# run where.
#
# test        the tests that everybody runs pass: a sample of each package; all cases of each with TAGS=exhaustive
# check       everything else that must hold: every target from fmt to darwinkit
# check-rest  the same without exhaustive, after a test with TAGS=exhaustive
#   fmt         Go files are formatted
#   sizes       no Go file is long, and the tracked files are not heavy
#   vet         go vet finds nothing, with and without the exhaustive tests
#   lint        staticcheck finds nothing
#   scripts     shellcheck and actionlint find nothing, and workflows pin their actions;
#               needs shellcheck
#   ranks       packages import only packages of lower rank
#   generated   generated files are what the generators write; needs clang 19
#   api-check   the public API is the one in api/
#   cross       every supported system builds, and go vet finds nothing there
#   exhaustive  the tests that have more cases in exhaustive runs pass
#   test-arm64  NEON loops and small models pass under qemu
#   softmetal   the Metal device passes on Metal in software; needs cgo, clang 19
#               and GCC's Objective-C runtime
#   pages       the HTML pages work in Chromium and are accessible; needs chromium and npm
#   clients     the service works with unchanged clients: openai-go and four npm packages;
#               needs npm
#   darwinkit   the bridge to darwinkit runs on Metal in software; needs libffi too
# race        the packages with goroutines pass under the race detector
# stress      concurrent tests pass 50 times beside busy loops: STRESS is a package,
#             RUN a pattern
# soak        a model for many sequences at full load for SOAK, 30m; SOAKFLAGS are
#             flags of TestSoak, such as -soak-device cuda
# load        1,000 streams of the service at once, some of which their clients leave, are neither lost
#             nor mixed up; memory and goroutines return to what they were
# fuzz        fuzzes every target, FUZZTIME each
#
# metallib    compiles the GPU kernels for embedding; needs a Mac with Xcode
# mac-report  runs the tests and benchmarks of a Mac, and writes build/mac-report.md, a file
#             to attach to an issue; MACREPORT has flags of internal/macreport
# golden      rewrites the golden files of the tests
# goldens-bundle  fills build/goldens with what transformers needs to make the reference
#             results of the small models; the target prints the commands to run there;
#             CONFIGS is a folder with a config.json for each new model
# gen         rewrites the generated files: those of the declarations of kernels and
#             types, the NEON assembly and the PTX; the latter two need clang 19
# api         accepts the public API as it is now
# release     builds the program for every supported system into build/release, with checksums
#             and a list of the modules in each (SBOM); the same commit gives the same files
# bench       measures decoding of the shipped model
# goldens-peer  makes small models from the folders CONFIGS with references of llama.cpp
# bench-peer  measures it beside llama.cpp, in alternation; MODELS are the files, PEER
#             is the folder for the npm package of llama.cpp's library
# peer-quantize  has llama.cpp read the files that quantize and convert write

FUZZTIME ?= 60s
MODULE := github.com/pianola-engine/pianola
TOOL = $$(go -C internal/tools tool -n $(1))

.PHONY: load release check check-rest test race stress soak exhaustive sizes test-arm64 softmetal softmetal-vet softmetal-device softmetal-sessions darwinkit pages clients metallib golden goldens-bundle goldens-peer gen api fuzz bench bench-peer peer-quantize fmt vet lint scripts mac-report ranks generated api-check cross

# make -j2 check runs two targets at a time: many are single-threaded.
check: check-rest exhaustive
check-rest: fmt sizes vet lint scripts ranks api-check softmetal cross generated test-arm64 darwinkit pages clients

fmt:
	@out=$$(gofmt -l .); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }

# Lines of a Go file that is not generated. TestSizes bounds the bytes of all tracked files.
MAX_LINES := 800
sizes:
	@git ls-files -z '*.go' | xargs -0 awk 'FNR == 1 { generated = 0 } /^\/\/ Code generated / { generated = 1 } \
		FNR == $(MAX_LINES) + 1 && !generated { print FILENAME ": more than $(MAX_LINES) lines"; bad = 1 } END { exit bad }'

vet:
	go vet ./...
	go vet -tags exhaustive $(EXHAUSTIVE)

lint:
	$(call TOOL,staticcheck) ./...

scripts:
	@command -v shellcheck >/dev/null || { echo "scripts: shellcheck is missing (Debian package shellcheck)"; exit 1; }
	shellcheck .ci/run $$(git ls-files '*.sh')
	$(call TOOL,actionlint) .github/workflows/*.yml
	@! grep -n 'uses:' .github/workflows/*.yml | grep -vE '@[0-9a-f]{40} # v[0-9]' || { echo "scripts: these actions are not pinned to a commit"; exit 1; }

ranks:
	go test -count=1 -run 'TestRanks' .

generated:
	go run ./internal/decl/gen -check
	go run ./internal/dtype/gen -check
	go run ./internal/neongen -check
	go run ./internal/shadergen -check

# Any change of the API is an error here until make api accepts it, so that it
# shows in the commit.
api-check:
	go run ./internal/apicheck/cmd -check

api:
	go run ./internal/apicheck/cmd

cross:
	@for t in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64; do \
		echo "build $$t"; \
		GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 go build -o /dev/null ./cmd/pianola || exit 1; \
	done
	@for t in linux/arm64 darwin/arm64 windows/amd64; do \
		echo "vet $$t"; \
		GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 go vet ./... || exit 1; \
	done

# CYCLONEDX lists the modules that a program was built from. Without cgo, programs for macOS lack Metal.
CYCLONEDX = $(call TOOL,cyclonedx-gomod)
release:
	@test -z "$$(git status --porcelain)" || { echo "release: commit first: the version of the programs is the commit"; exit 1; }
	@rm -rf build/release && mkdir -p build/release
	@version=$$(git describe --tags --always); for t in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64; do \
		os=$${t%/*} arch=$${t#*/}; out=build/release/pianola-$$version-$$os-$$arch; echo "build $$t"; \
		case $$os in windows) exe=.exe;; *) exe=;; esac; \
		GOOS=$$os GOARCH=$$arch CGO_ENABLED=0 go build -trimpath -buildvcs=true -ldflags '-s -w' -o $$out$$exe ./cmd/pianola && \
		$(CYCLONEDX) bin -json -std -noserial -notimestamp -output $$out.cdx.json $$out$$exe 2>/dev/null || exit 1; \
	done
	@cd build/release && sha256sum pianola-* >SHA256SUMS && cat SHA256SUMS

# Packages that take long are first, so that the others run beside them. Here and below, go test does not
# vet what make vet, cross or softmetal-vet has vetted.
TAGS ?=
test:
	go test -timeout 40m $(if $(filter exhaustive,$(TAGS)),-vet=off) -tags '$(TAGS)' ./internal/conform ./replay/... ./...

# The packages with exhaustive tests; those of softmetal run there. Tests that do not depend on the tag
# are those of make test.
EXHAUSTIVE = $$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | awk '/ .*internal\/exhaustive/ { print $$1 }' | grep -v internal/exhaustive)
exhaustive:
	tests=$$(go run ./internal/exhaustive/cmd $(EXHAUSTIVE)) && \
	CGO_ENABLED=0 go test -vet=off -timeout 40m -tags exhaustive -run "$$tests" ./internal/conform $(EXHAUSTIVE)

# What is skipped has one goroutine, and runs for minutes under the race detector.
# LOOPS are the tests of replay/cpu that call its loops or single kernels from one goroutine. Package tokenizer
# starts no goroutines; only the tests run whose goroutines share a tokenizer.
LOOPS = TestMatmul|TestNormProductAdd|TestMergeProduct|TestDraws|TestFilters|TestTiled|TestProducts|TestFMA|TestDot|TestQ8Agrees|TestFloat|TestHalvesAgree|TestExp|TestQuantize|TestSumHalves|TestAddScaled|TestFP8|TestAttn
race:
	CGO_ENABLED=1 go test -vet=off -race -timeout 20m -skip 'TestSampledChains|TestCUDA/.*/KVKinds|TestCUDAAgrees|$(LOOPS)' \
		./replay/... ./internal/batch ./internal/hub ./internal/serve/... ./internal/device ./internal/cuda/fake ./weights
	CGO_ENABLED=1 go test -vet=off -race -timeout 20m -run 'Concurrent' ./internal/tokenizer
	CGO_ENABLED=1 go test -vet=off -race -timeout 20m -run 'Many|Fork|Close|Busy|Break|Cancel|Events|Reserve' . ./internal/e2e
	CGO_ENABLED=1 go test -vet=off -race -timeout 20m -run 'TestServeStreams|TestServeHere' ./cmd/pianola

STRESS ?= ./replay/cuda
RUN ?= .
stress:
	@mkdir -p build && CGO_ENABLED=1 go test -race -c -o build/stress.test $(STRESS)
	@for i in 1 2 3; do (while :; do :; done) & loops="$$loops $$!"; done; trap "kill $$loops" EXIT; \
	cd $(STRESS) && $(CURDIR)/build/stress.test -test.run '$(RUN)' -test.count 50 -test.timeout 20m

SOAK ?= 30m
soak:
	go test -count=1 -timeout 0 -run TestSoak -v ./internal/e2e -soak $(SOAK) $(SOAKFLAGS)

load:
	go test -count=1 -timeout 30m -run TestServeStreams -v ./cmd/pianola -streams 1000 -stream-rounds 4

# Under qemu tests take several times as long: three packages, and two small models. The CPU called
# max has i8mm, and the other one does not. The skipped tests compare teams of threads, which are the same
# code on amd64, where make test runs them.
test-arm64:
	@command -v qemu-aarch64 >/dev/null || { echo "test-arm64: qemu-aarch64 is missing (Debian package qemu-user)"; exit 1; }
	GOARCH=arm64 CGO_ENABLED=0 go test -vet=off -timeout 30m -exec "qemu-aarch64 -cpu max" -skip 'TestTogether|TestFewWorkers' ./internal/dtype ./internal/quantize ./replay/cpu
	GOARCH=arm64 CGO_ENABLED=0 go test -vet=off -timeout 30m -exec "qemu-aarch64 -cpu neoverse-n1" -run Tiled ./replay/cpu
	GOARCH=arm64 CGO_ENABLED=0 go test -vet=off -timeout 30m -tags nocuda -exec "qemu-aarch64 -cpu max" -run 'TestGoldens/testdata/(tiny|gopher-q8_0.gguf)/llama' ./internal/e2e

# Metal's own declarations are checked by go test ./internal/metal/driver.
SOFTMETAL = CGO_ENABLED=1 CC=clang-19 go
# Two threads that emulate the GPU: make -j2 runs both.
softmetal: softmetal-device softmetal-sessions

softmetal-vet:
	@for need in clang-19:clang-19 /usr/include/Block.h:libblocksruntime-dev /usr/lib/gcc/*/*/libobjc.so:gobjc; do \
		command -v "$${need%:*}" >/dev/null || ls $${need%:*} >/dev/null 2>&1 || missing="$$missing $${need##*:}"; \
	done; test -z "$$missing" || { echo "softmetal: missing Debian packages:$$missing"; exit 1; }
	$(SOFTMETAL) vet -tags softmetal ./...

softmetal-device: softmetal-vet
	$(SOFTMETAL) test -vet=off -timeout 20m -tags 'softmetal exhaustive' ./replay/metal/... ./internal/metal/...

softmetal-sessions: softmetal-vet
	$(SOFTMETAL) test -vet=off -timeout 20m -tags 'softmetal exhaustive' -run TestMetal . ./replay ./cmd/pianola ./internal/e2e

metallib:
	go run ./internal/metal/kernels/gen

mac-report:
	go run ./internal/macreport $(MACREPORT)

darwinkit:
	@test -n "$$(ls /usr/include/ffi.h /usr/include/*/ffi.h 2>/dev/null)" || { echo "darwinkit: missing Debian package: libffi-dev"; exit 1; }
	examples/darwinkit/testdata/execute/run.sh -count=1

PAGES := $(CURDIR)/build/pages
AXE := $(PAGES)/node_modules/axe-core/axe.min.js
$(AXE):
	npm install --silent --prefix $(PAGES) --ignore-scripts axe-core@4.14.1

pages: $(AXE)
	@command -v chromium >/dev/null || { echo "pages: missing Debian package: chromium"; exit 1; }
	go -C internal/pagetest vet ./...
	go -C internal/pagetest test -timeout 5m . -axe $(AXE)

CLIENTS := $(CURDIR)/build/clients
$(CLIENTS)/node_modules/.package-lock.json: internal/clienttest/node/package-lock.json
	mkdir -p $(CLIENTS)
	cp internal/clienttest/node/package*.json $(CLIENTS)
	npm ci --silent --prefix $(CLIENTS) --ignore-scripts --no-audit --no-fund

clients: $(CLIENTS)/node_modules/.package-lock.json
	cp internal/clienttest/node/*.mjs $(CLIENTS)
	go -C internal/clienttest vet ./...
	go -C internal/clienttest test -timeout 5m . -node $(CLIENTS)

golden:
	go test ./compiler ./table ./cmd/pianola ./internal/serve/openai ./internal/serve/responses ./internal/serve/anthropic -update

BUNDLE := build/goldens
goldens-bundle:
	rm -rf $(BUNDLE)
	mkdir -p $(BUNDLE)/testdata $(BUNDLE)/known/gopher
	CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -ldflags='-s -w' -o $(BUNDLE)/tinymodels ./internal/tinymodels/cmd
	tar -C testdata --exclude='*.safetensors' --exclude='*.gguf' -cf - tiny variants | tar -C $(BUNDLE)/testdata -xf -
	cp testdata/gopher/config.json testdata/gopher/golden.json testdata/gopher/model.safetensors $(BUNDLE)/known/gopher
	cp internal/tinymodels/goldens.py internal/tinymodels/newmodels.py $(BUNDLE)
	mkdir -p $(BUNDLE)/configs
	$(if $(CONFIGS),cp -R $(CONFIGS)/. $(BUNDLE)/configs)
	@du -sh $(BUNDLE)
	@echo 'cd $(BUNDLE) && ./tinymodels -o /tmp/models && python3 goldens.py /tmp/models OUT --known known'
	$(if $(CONFIGS),@echo 'cd $(BUNDLE) && python3 newmodels.py configs OUT ./tinymodels')

gen:
	go run ./internal/decl/gen
	go run ./internal/dtype/gen
	go run ./internal/neongen
	go run ./internal/shadergen

fuzz:
	@for pkg in $$(go list ./...); do \
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$f"; \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

PEER ?= $(HOME)/.cache/llama-peer
MODELS ?= testdata/gopher-q8_0.gguf
PEERFLAGS ?=

LLAMAPEER = $(PEER)/llamapeer $(PEER)/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64

$(PEER)/llamapeer: bench/peer/llama/llamapeer.c
	npm install --silent --prefix $(PEER) --ignore-scripts @node-llama-cpp/linux-x64@3.22.1
	cc -O3 -o $@ $< -ldl -lm

bench-peer: $(PEER)/llamapeer
	go build -o $(PEER)/pianola ./cmd/pianola
	go run ./bench/peer -pianola $(PEER)/pianola -peer "$(LLAMAPEER)" $(PEERFLAGS) $(MODELS)

goldens-peer: $(PEER)/llamapeer
	go run ./internal/tinymodels/peer -peer "$(LLAMAPEER)" $(CONFIGS)

peer-quantize: $(PEER)/llamapeer
	go test -count=1 -timeout 60m -v -run TestPeer ./cmd/pianola -peer "$(LLAMAPEER)"

bench:
	go run ./cmd/pianola bench testdata/gopher-q8_0.gguf
