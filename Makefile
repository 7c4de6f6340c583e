# Every command of the project. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Server versions for e2e: 15, 17, 18 or all.
PG ?= 15
# One e2e test, by the name in its RESULT line.
RUN ?=
# Further flags for the e2e tests, such as -crashes=1000.
ARGS ?=
FUZZTIME ?= 5s

export PG RUN ARGS FUZZTIME

.PHONY: help
help: ## List the commands.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Run the whole path and serve a page on which an order is followed and things are broken; PORT=7070, PG=15. Needs Java 17.
	@KAFKA=real scripts/deps.sh demo
	@mkdir -p bin
	@echo "building ..."
	@go build -o bin/ ./cmd/cdc-relay ./cmd/cdc-relay-demo ./examples/orders
	@exec bin/cdc-relay-demo -page # not by "go run", which turns Ctrl-C into an error

.PHONY: demo-terminal
demo-terminal: ## Show orders flowing from PostgreSQL to Kafka, in the terminal; KAFKA=real, RATE=5, DURATION=30s, KILL=1.
	@scripts/deps.sh demo
	@mkdir -p bin
	@echo "building cdc-relay and cdc-relay-demo ..."
	@go build -o bin/ ./cmd/cdc-relay ./cmd/cdc-relay-demo
	@exec bin/cdc-relay-demo

.PHONY: lab
lab: ## Kill the whole path in every window between two commits and compare what is left; ARGS="--scene NAME --kills 100 --json".
	@scripts/lab.sh $(ARGS)

.PHONY: lab-docs
lab-docs: ## Make docs/lab.md from a run of the lab.
	@scripts/lab.sh --pg 15 --markdown >docs/lab.md.part
	@mv docs/lab.md.part docs/lab.md

.PHONY: build
build: ## Build bin/cdc-relay, and bin/cdc-inbox for dead letters.
	@mkdir -p bin
	@go build -o bin/ ./cmd/...

.PHONY: test
test: ## Set up everything and run all checks: build, vet, lint, unit tests with -race, fuzzing, e2e.
	@scripts/test.sh

.PHONY: deps
deps: ## Install what the tests need: PostgreSQL, Kafka's jars, Chromium, binaries of PostgreSQL 17 and 18.
	@scripts/deps.sh all

.PHONY: unit
unit: ## Unit tests, with the race detector.
	@scripts/unit.sh

.PHONY: e2e
e2e: ## End-to-end tests; RUN=<name of a RESULT line>, PG=15|17|18|all, ARGS=<flags>.
	@scripts/e2e.sh

.PHONY: e2e-containers
e2e-containers: ## Crash and outage tests in containers, and docker-compose.yml once; starts a Docker engine if none answers (root).
	@scripts/containers.sh full

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (5s).
	@scripts/fuzz.sh

.PHONY: bench-quick
bench-quick: ## Drain a backlog by the relay and by pg_recvlogical, a few minutes; ARGS="-rows=200000 -rounds=2 -tx-rows=1".
	@scripts/bench.sh quick $(ARGS)

.PHONY: bench
bench: ## Measure everything side by side (hours), go on where a run was broken off; RUN=<cells>, ARGS=-fresh. See bench/README.md.
	@scripts/bench.sh run $(ARGS)

.PHONY: bench-go
bench-go: ## Run the benchmarks in Go of every step of an event, and of all together; ARGS=<flags of go test>.
	@go test -run '^$$' -bench . $(ARGS) ./decoder ./route ./checkpoint ./sink/kafka ./replication ./relay

.PHONY: lint
lint: ## Run golangci-lint, with the import rules of .golangci.yml; go vet where it cannot be installed.
	@scripts/lint.sh

.PHONY: vet
vet: ## Run go vet.
	@go vet ./...

.PHONY: fmt
fmt: ## Format all Go files.
	@gofmt -w $$(git ls-files -co --exclude-standard '*.go')

.PHONY: clean
clean: ## Remove what was built; downloads stay in .cache.
	@rm -rf bin
	@go clean -testcache

.PHONY: distclean
distclean: clean ## Remove downloads as well.
	@rm -rf .cache
