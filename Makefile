# `make demo` and `make test` set everything up first, in an environment of their own (.venv).
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed
REAL := real nat browser packages
# a third of the tests' time is waiting: three processes keep two cores busy
PARALLEL := -n 3 --dist worksteal

.PHONY: demo test test-all test-extras test-newest rig durability mutants simulate check lint mypy pyright imports pytest fmt spec picture lock binary packages images interop clean

demo: $(STAMP)  ## a gate, three workers and a campaign on this machine
	@$(BIN)/sark-node demo

test: check pytest  ## what CI runs: everything but the tests marked slow; minutes

test-all: check  ## every test, real processes, browser and NATs one at a time
	$(BIN)/python -m pytest $(REAL:%=--ignore=tests/%) $(PARALLEL)
	$(BIN)/python -m pytest $(REAL:%=tests/%)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv: one to two minutes the first time …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' 2>.venv/pip.log || (cat .venv/pip.log; exit 1)
	@# libp2p pulls stale stubs that hide trio's own types from the type checkers
	@rm -rf .venv/lib/python*/site-packages/trio-stubs
	@touch $(STAMP)

check: $(STAMP)  ## the linters and type checkers, two at a time
	@$(MAKE) -j2 mypy pyright imports lint

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy: $(STAMP)
	$(BIN)/mypy

pyright: $(STAMP)
	$(BIN)/pyright

imports: $(STAMP)
	$(BIN)/lint-imports

pytest: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" $(REAL:%=--ignore=tests/%) $(PARALLEL)
	$(BIN)/python -m pytest -m "not slow" $(REAL:%=tests/%)  # real processes, one test at a time: each fills the machine

rig: $(STAMP)  ## every attack that we know against real processes, each beside an honest campaign: a quarter of an hour
	$(BIN)/python -m tests.rig

durability: $(STAMP)  ## the power cut at more than 10,000 operations of the real services on their files: minutes
	$(BIN)/python -m tests.durability

SEEDS ?= 1000
simulate: $(STAMP)  ## seeds of the simulation (SEEDS=1000, or SEEDS=5000-5999), a dozen a second on each core; DAYS=2: and whole days, a minute each
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)
	$(if $(DAYS),$(BIN)/python -m tests.simulation --day --seeds $(DAYS))

mutants: $(STAMP)  ## bugs put into a copy of the source, each with the tests that find it: a quarter of an hour
	$(BIN)/python -m tests.mutants --report docs/mutants.md

EXTRAS := .venv-extras
test-extras:  ## the optional drivers with their real runtimes and results to an S3 server, in an environment of their own (.venv-extras): torch is large
	@test -x $(EXTRAS)/bin/python || $(PYTHON) -m venv $(EXTRAS)
	@$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,torch,litert,llamacpp,transformers,openvino,mlx,executorch,storage]' gguf 'coremltools>=9' pymicro-wakeword 'aiobotocore[boto3]' 'moto[server]'
	$(EXTRAS)/bin/python -m pytest tests/extras

NEWEST ?= python3.13
test-newest:  ## the tests without real parts on the newest Python that the classifiers name, in an environment of its own (.venv-newest)
	@test -x .venv-newest/bin/python || $(NEWEST) -m venv .venv-newest
	@.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	.venv-newest/bin/python -m pytest -m "not slow" $(REAL:%=--ignore=tests/%) $(PARALLEL)

fmt: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

spec: $(STAMP)  ## write what is generated: parts of SPEC.md, docs/columns.md, docs/openapi.json, docs/cli.md, docs/sark-node.1
	@$(BIN)/python -P tools/spec.py
	@$(BIN)/python -c "from pathlib import Path; from results.row.row import columns_page; Path('docs/columns.md').write_text(columns_page(), 'utf-8')"
	@$(BIN)/python -c "from pathlib import Path; import sark; Path('docs/openapi.json').write_text(sark.openapi_text(), 'utf-8')"
	@$(BIN)/python -P tools/reference.py

binary: $(STAMP)  ## dist/sark-node-…: all in one file for this system, made in an environment of its own (.venv-binary) and tried
	$(PYTHON) -P tools/binary.py
	$(BIN)/python -m pytest tests/packages/test_binary.py

packages: $(STAMP)  ## the wheel, installed by pipx and by uv as its users do; fetches what it needs
	$(BIN)/python -m pytest tests/packages/installers/test_installers.py

images: $(STAMP)  ## the images of examples/, built and run where podman or docker answers; minutes, and fetches what it needs
	$(BIN)/python -m pytest tests/packages/installers/test_images.py

interop: $(STAMP) tests/interop/go/p2pd tests/interop/rust/installed  ## peers of js-, go- and rust-libp2p with a gate and nodes of ours; needs node, and fetches all three
	cd tests/interop/js && npm ci --no-audit --no-fund
	$(BIN)/python -m pytest tests/interop

tests/interop/go/p2pd: tests/interop/go/requirements.txt
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --dest $(@D) --requirement $<
	$(BIN)/python -m zipfile --extract $(@D)/*.whl $(@D)/wheel && rm $(@D)/*.whl
	mv $(@D)/wheel/hivemind/proto/p2pd_pb2.py $(@D)/wheel/hivemind/hivemind_cli/p2pd $(@D) && rm -r $(@D)/wheel && chmod +x $@ && touch $@

tests/interop/rust/installed: tests/interop/rust/requirements.txt
	rm -rf $@ && $(BIN)/python -m pip install --quiet --no-deps --require-hashes --target $@ --requirement $< && touch $@

picture: $(STAMP)  ## docs/images/demo.svg, the picture of the README, from a demo that runs now
	@$(BIN)/python -P tools/picture.py

lock:  ## pin what a fresh environment of this project's dependencies resolves to
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet -e '.[dev]'
	.venv-lock/bin/python -m pip freeze --exclude-editable --exclude sark-node > constraints.txt
	rm -rf .venv-lock

clean:
	rm -rf .venv .venv-extras .venv-newest .venv-binary .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
