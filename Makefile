# Everything there is to do here. 'make' alone lists it.

export HOME := $(or $(HOME),/root)
export PATH := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sallyport/go/bin:$(PATH)
export GOFLAGS := -buildvcs=false $(GOFLAGS)

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 30s
SOAK     ?= 1h
CALICO   ?= real
COUNT    ?= 1
CUTS     ?= 50
N        ?= 20
PKG      ?= ./...

.DEFAULT_GOAL := help
.PHONY: help setup ready build deb test-deb image image-again demo-image demo-image-down test-image demo demo-down demo-ha demo-ha-down test test-calico race check fresh go lint bench profile conformance attack chaos soak soak-tests fuzz golden

help: ## List what there is
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup: ## Install what is missing on this machine: Go, Debian packages (as root)
	@test/setup --tests

go: # the compiler alone
	@test/setup --go

ready: # what a lab needs, without what only tests need
	@test/setup

build: go ## Build .build/sallyport
	go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o .build/sallyport ./cmd/sallyport

deb: go ## Build the Debian package into .build
	image/deb/build

test-deb: ## Install the Debian package into clean roots of Debian 12 and 13 (as root)
	@test/setup --image
	image/deb/test

demo: ready build ## Bring up a cluster, the appliance and a sample application, and leave them running; CALICO=stand-in has no Calico to compile
	go build -o .build/ ./test/lab ./test/app ./test/demo/picture
	test/demo/up $(CALICO)

demo-ha: ready build ## The same with two appliances behind a router: one is drained, killed, updated, and dies, under load
	go build -o .build/ ./test/lab ./test/app ./test/demo/clients
	test/demo/group $(CALICO)

demo-ha-down: ## Remove all that make demo-ha brought up
	test/demo/down demoha

demo-down: ## Remove all that make demo brought up
	test/demo/down

image: ## Build the bootable image into .build/image, in every format (as root)
	@test/setup --image
	@image/recipe/build

.build/image/latest:
	$(MAKE) image

image-again: .build/image/latest ## Build the image once more, and compare every byte of it
	OUT=.build/image-again image/recipe/build
	grep -hv vhdx .build/image/SHA256SUMS .build/image-again/SHA256SUMS | sort | uniq -u | diff /dev/null -

demo-image: ready build .build/image/latest ## Boot the image as the appliance of a lab, show that it serves, and leave it running
	@test/setup --boot
	go build -o .build/ ./test/lab ./test/app ./image/boot
	image/demo

demo-image-down: ## Remove all that make demo-image brought up
	image/demo down

test-image: setup .build/image/latest ## Boot the image in every way, update it, cut its power CUTS times (as root)
	@test/setup --boot
	SALLYPORT_TEST_IMAGE=$(CURDIR)/.build/image go test -v -count=1 -timeout 5h ./image/boot -all -cuts $(CUTS) -keep $(CURDIR)/.build/image-seen

test: setup ## Run all tests, on real parts, then build the image and boot it (as root)
	@test/setup --image
	@test/setup --boot
	go test -timeout 60m ./test/e2e $$(go list ./... | grep -v -e /image/boot -e /test/e2e) # the longest first
	go test -v -count=1 -timeout 45m ./image/boot

test-calico: setup ## Run the end-to-end tests on real Calico, all of them (as root)
	go test -v -count=1 -timeout 30m ./test/e2e -run RealCalico -calico

race: setup ## Run the packages' own tests under the race detector, in random order
	CGO_ENABLED=1 go test -race -short -shuffle=on -p 4 -timeout 15m ./appliance/... ./bgp ./cmd/... ./haproxy ./image ./image/update ./ingress/... ./routes/...

check: test race conformance lint ## Run all tests, the race detector, conformance, then lint

fresh: ## Run build, deb, lint, fuzz, bench, demo and golden, each first on a fresh Debian 12 (as root); the rest begin alike, and take longer
	@test/fresh

lint: go ## Hold the code to the house rules
	go run $(LINT) run $(PKG)

bench: ready ## Measure, and print a table of ratios; BENCH has its flags
	go run ./test/bench $(BENCH)

profile: ready ## Leave profiles of the appliance in .build/profiles: endpoint changes, churn, start; BENCH has flags of bench
	go run ./test/bench -only 6,11,12 -profiles .build/profiles $(BENCH)

conformance: ready ## Show case by case what annotations do, in a lab (as root)
	go run ./test/conformance

attack: ready ## Try to break in, case by case, in a lab (as root)
	go run ./test/attack

chaos: ready ## Break things under load, and hold what clients notice to its bounds (as root)
	go run ./test/chaos -count $(COUNT) -o .build/chaos.json -log .build/chaos.log

soak: ready ## Churn under load for SOAK, and see whether anything grows
	go run ./test/chaos -only 20 -soak $(SOAK) -log .build/soak.log

soak-tests: setup ## Run the tests N times, every second time beside two busy loops, to find those that fail by themselves
	@test/soak-tests $(N)

fuzz: setup ## Fuzz each parser of foreign bytes for FUZZTIME
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' | while read -r dir name; do \
		echo "$$dir $$name" && go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s "$$dir" || exit 1; done

golden: setup ## Write the golden files anew, then show what changed
	go test $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u) -update
	git diff --stat
