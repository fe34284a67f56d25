# The same words as CI. `make demo` and `make test` are all that a fresh machine with Rust needs.

CARGO ?= cargo
# The contract is compiled without a protoc binary; nobody is to come to need one.
export PROTOC := /nonexistent

# Which engine the conformance suite holds to the contract: userspace, nftables, iptables, one of its back ends
# (iptables-legacy, iptables-nft), or all.
ENGINE ?= all
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 60

.PHONY: help demo test vm lint advisories conformance bench fuzz kill chaos endurance

help:
	@echo 'make demo          build, then show virtual IPs being served on this machine; no root needed (< 6 min)'
	@echo 'make test          every ring of tests, one line each; VIPD_TESTS_REQUIRE=all allows no skipping'
	@echo 'make vm            what needs IPVS, in virtual machines: User-Mode Linux, QEMU (minutes)'
	@echo 'make lint          rustfmt, clippy, cargo-deny (licences, bans, sources)'
	@echo 'make advisories    known vulnerabilities of dependencies; needs the network'
	@echo 'make conformance   the table of cases for one engine or all: ENGINE=$(ENGINE)'
	@echo 'make bench         figures beside peers in the same run; writes docs/performance.md (minutes)'
	@echo 'make fuzz          every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make kill          1,000 kill -9 under writing clients (minutes)'
	@echo 'make endurance     kills, flushes, switches, a million connections, 200,000 flows on every kernel engine (an hour)'
	@echo 'make chaos         10,000 seeds of the chaos suite (minutes)'

demo:
	$(CARGO) build --quiet --package vipd --package vipctl --package vipd-tests --bin vipd --bin vipctl --bin demo
	@$(CARGO) run --quiet --package vipd-tests --bin demo

test:
	@$(CARGO) run --quiet --package vipd-tests --bin rings

vm:
	tests/vm/run.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	@# Not among all targets, since a plain `cargo test` leaves them out.
	$(CARGO) clippy --package ipvs-rs --test kernel --test kernel_crowd --quiet -- -D warnings
	$(CARGO) deny --log-level error check bans licenses sources

# Known vulnerabilities of dependencies; fetches the advisory database, so it is apart from lint, which must work offline.
advisories:
	$(CARGO) deny check advisories

conformance:
	$(CARGO) build --quiet --package vipd --bin vipd
	@$(CARGO) test --quiet --package vipd-tests --test conformance -- --engine $(ENGINE)

bench:
	tests/bench.sh

fuzz:
	tests/fuzz.sh $(FUZZ_SECONDS)

kill:
	$(CARGO) build --quiet --release --package vipd --bin vipd
	VIPD_KILLS=1000 $(CARGO) test --release --package vipd-tests --test faults

chaos:
	VIPD_CHAOS_SEEDS=10000 $(CARGO) test --release --package vipd --lib chaos -- --nocapture

# One engine, or one of the trials: `make endurance ENGINE=nftables TRIAL=kill_9`.
endurance: ENGINE =
endurance:
	$(CARGO) build --quiet --release --package vipd --bin vipd
	ENGINE=$(ENGINE) VIPD_KILLS=1000 VIPD_FLUSHES=100 VIPD_SWITCHES=200 VIPD_CONNECTIONS=1000000 VIPD_SWAPS=50000 \
	VIPD_FLOWS=200000 VIPD_LOCK_SECONDS=60 VIPD_FULL_TABLE=1 \
	$(CARGO) test --release --package vipd-tests --test endurance -- $(TRIAL)
