# Everything there is to do here. 'make' alone lists it.

export HOME := $(or $(HOME),/root)
export PATH := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sallyport/go/bin:$(PATH)
# -trimpath: what one checkout has compiled serves another one in another folder.
export GOFLAGS := -buildvcs=false -trimpath $(GOFLAGS)

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 30s
SOAK     ?= 1h
NIGHT    ?= 1h
CALICO   ?= real
COUNT    ?= 1
CUTS     ?= 50
HISTORIES ?= 2000
N        ?= 20
PKG      ?= ./...

.DEFAULT_GOAL := help
.PHONY: help setup ready build deb test-deb image image-again demo-image demo-image-down test-image demo demo-down demo-ha demo-ha-down demo-clusters demo-clusters-down test packages e2e changed changed-boot changed-manual changed-gateway remembered manual boot test-calico race race-haproxy race-others lab-parts apparatus gateway-more idly check nightly fresh go lint bench sim rivals profile conformance gateway attack chaos soak night soak-tests histories fuzz golden

help: ## List what there is
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup: ## Install what is missing on this machine: Go, Debian packages (as root)
	@test/setup --tests

go: # the compiler alone
	@test/setup --go

ready: # what a lab needs, without what only tests need
	@test/setup

build: go ## Build .build/sallyport
	go build -ldflags '-s -w -X main.version=$(VERSION)' -o .build/sallyport ./cmd/sallyport

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

demo-clusters: ready build ## One host served by two clusters: one takes over share by share, is drained, and dies, under load
	go build -o .build/ ./test/lab ./test/app ./test/demo/clients ./test/demo/picture
	test/demo/clusters $(CALICO)

demo-clusters-down: ## Remove all that make demo-clusters brought up
	test/demo/down demoblue demogreen

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

test: setup ## Run all tests once, on real parts; the manual, the image and Gateway API if they changed (as root)
	@$(MAKE) --no-print-directory e2e
	@$(MAKE) --no-print-directory -j 2 packages changed

packages: setup
	go test -timeout 75m $$(go list ./... | grep -v -e /image/boot -e /test/e2e)

# Of the programs that it builds, go test knows nothing: -count=1. Its clusters, clients and appliances keep two
# processors busy: real ones have machines of their own. So nothing else runs beside it: what came second would
# wait for a processor longer than its own limits allow. Without the sysctl each HAProxy, being a session of its
# own, would get as much processor as all clients and API servers together.
e2e: setup
	-@sysctl -q -w kernel.sched_autogroup_enabled=0
	go test -count=1 -timeout 60m -skip '^TestEveryCommandOfTheManualRuns$$' ./test/e2e

# Targets that run again only if something that they test has changed. make nightly runs them in any case.
changed: changed-boot changed-manual changed-gateway

changed-boot: setup
	@test/if-changed boot image appliance/config test/lab test/load test/rig go.mod

changed-manual: setup
	@test/if-changed manual '*.md' cmd image/units image/deb test/e2e test/faults test/lab test/load test/manual test/rig go.mod

changed-gateway: setup
	@GATEWAY='$(or $(GATEWAY),-ends)' test/if-changed gateway haproxy ingress/gateway ingress/listen ingress/claims ingress/allot $(addprefix ingress/,amend.go backends.go exchange.go gateways.go shared.go) $(addprefix ingress/watch/,conditions.go gateways.go publish.go survey.go) appliance/balancers.go appliance/loop.go test/gateway test/lab test/rig go.mod

manual: setup ## Type every command of the manual on a machine beside a cluster with Calico (as root)
	go test -count=1 -timeout 30m -run '^TestEveryCommandOfTheManualRuns$$' ./test/e2e

boot: setup ## Build the image, and boot it in the ways that matter most (as root)
	@test/setup --image
	@test/setup --boot
	go test -v -count=1 -timeout 45m ./image/boot

test-calico: setup ## Run the end-to-end tests on real Calico, all of them (as root)
	go test -v -count=1 -timeout 30m ./test/e2e -run RealCalico -calico

# What the race detector leaves out: packages without a goroutine, where it finds nothing and costs
# minutes, and bgp/upstream, whose tests have two speakers of GoBGP in one process. Two speakers race
# for GoBGP's package variables; the product has one.
UNRACED = ^sallyport/(appliance/picture|appliance/plan|bgp/upstream|ingress)$$

RACED = $$(go list ./... | grep -Ev '/haproxy$$|/image/boot|^sallyport/test|$(UNRACED)')

race: setup ## Run the packages' own tests under the race detector, in random order
	@$(MAKE) --no-print-directory -j 2 race-haproxy race-others

# Tests of both wait for other programs: more of them run at once than there are processors.
race-haproxy: setup # with each HAProxy, four of them at once
	CGO_ENABLED=1 go test -race -shuffle=on -parallel 4 -timeout 75m ./haproxy

race-others: setup
	CGO_ENABLED=1 go test -race -shuffle=on -p 3 -parallel 4 -timeout 75m $(RACED)

# What labs are made of: its tests need nothing of the product.
LABPARTS = ^sallyport/test/lab/(bird|debian|kubelet|world)$$

lab-parts: setup
	go test -timeout 75m $$(go list ./... | grep -E '$(LABPARTS)')

# The packages that take longest, and that few changes concern.
remembered: setup
	@test/if-changed race-haproxy haproxy test/lab/debian go.mod
	@test/if-changed lab-parts test/lab go.mod

apparatus: setup # the tests of what is under test, but for test/e2e; and those that race leaves out
	go test -timeout 75m $$(go list ./... | grep -E '^sallyport/test|$(UNRACED)' | grep -Ev '/test/e2e|$(LABPARTS)')

# The labs of e2e leave a part of the processors idle. What only computes has that part (SCHED_IDLE): the linters, and
# the compiler for the tests that follow.
idly: setup
	@chrt --idle 0 ionice -c 3 $(MAKE) --no-print-directory lint
	@CGO_ENABLED=1 chrt --idle 0 ionice -c 3 go list -race -test -export ./haproxy $(RACED) >/dev/null

# What takes longest begins first.
check: setup ## Run all tests once, the packages' own under the race detector; then conformance and lint (as root)
	@$(MAKE) --no-print-directory -j 2 e2e idly; first=$$?; \
	$(MAKE) --no-print-directory -j 3 changed-boot remembered race-others changed-manual changed-gateway apparatus conformance && exit $$first

nightly: setup ## Run everything, whether it changed or not, and go on after a failure; it takes hours (as root)
	@AGAIN=1 $(MAKE) --no-print-directory -k check test-calico test-deb gateway-more attack chaos image test-image image-again histories fuzz fresh ATTACK=-all GATEWAY=-all

fresh: ## Run build, deb, lint, fuzz, bench, demo and golden, each first on a fresh Debian 12 (as root); the rest begin alike, and take longer
	@test/fresh

lint: go ## Hold the code to the house rules
	go run $(LINT) run $(PKG)

bench: ready ## Measure, and print a table of ratios; BENCH has its flags
	go run ./test/bench $(BENCH)

sim: ready ## Grow clusters in a simulation until a bound breaks, and print where; SIM has its flags: -axis NAME -to SIZE
	go test -count=1 -timeout 3h -run '^TestWalls$$' -v ./appliance -args -sim $(SIM)
	$(if $(SIM),,go run ./test/bench -only 35,36 -json "")

rivals: ready ## Make the same faults for sallyport and for others, and count what clients lose; RIVALS has its flags
	go run ./test/rivals -o .build/rivals.json $(RIVALS)

profile: ready ## Leave profiles of the appliance in .build/profiles: endpoint changes, churn, start; BENCH has flags of bench
	go run ./test/bench -only 6,11,12 -profiles .build/profiles $(BENCH)

conformance: ready ## Show case by case what annotations do, in a lab (as root)
	go run ./test/conformance

gateway: ready ## Run the official conformance suite of Gateway API, in a lab (as root); GATEWAY has its flags
	go run ./test/gateway $(GATEWAY)

gateway-more: ready # the suite against a group whose members are drained, and with the CRDs of the experimental channel
	go run ./test/gateway -group
	go run ./test/gateway -experimental

attack: ready ## Try to break in, case by case, in a lab (as root)
	go run ./test/attack $(ATTACK)

chaos: ready ## Break things under load, and hold what clients notice to its bounds (as root)
	go run ./test/chaos -count $(COUNT) -o .build/chaos.json -log .build/chaos.log

soak: ready ## Churn under load for SOAK, and see whether anything grows
	go run ./test/chaos -only 20 -soak $(SOAK) -log .build/soak.log

night: ready ## Repeat a production day under load for NIGHT, on a group of two and real Calico, and see what it costs and what grows
	go run ./test/chaos -lab bgp2 -only 39 -night $(NIGHT) -calico real -log .build/night.log

soak-tests: setup ## Run the tests N times, every second time beside two busy loops, to find those that fail by themselves
	@test/soak-tests $(N)

histories: go ## Compile many random histories of clusters twice, with the memory of the compiler and without
	go test ./ingress -timeout 180m -rapid.checks=$(HISTORIES) \
	  -run '^Test(RememberingIsOnly|AFew|AnotherClusterOfASet|RoutesOfOneTenant|ATenantChanges)'

fuzz: setup ## Fuzz each parser of foreign bytes for FUZZTIME
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' | while read -r dir name; do \
		echo "$$dir $$name" && go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s "$$dir" || exit 1; done

golden: setup ## Write the golden files anew, then show what changed
	go test $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u) -update
	git diff --stat
