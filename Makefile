# make demo | make test | make test-long | make clean      needs Python >= 3.10 and make
PYTHON ?= python3
JOBS   ?= 2

VENV := .venv
RUN  := $(VENV)/bin/python -m
# Made last, so that a set-up that was cut short is done again.
READY := $(VENV)/.ready

.PHONY: demo test test-long clean

demo: $(READY)
	@mkdir -p reports
	@# pytest's exit code travels in a file: a pipe would give us tee's, and sh has no pipefail.
	@{ cd examples/skinny_gemm && ../../$(RUN) pytest --timing-dir=../../reports/timings; echo $$? > ../../reports/.exit; } 2>&1 | tee reports/skinny_gemm.txt
	@$(RUN) testkit timing report reports/timings --html reports/skinny_gemm.html
	@# A decode loop on a device that is only simulated: where the host waits, and the loop without a wait.
	@cd examples/step_loop && for loop in before after; do echo; echo "step_loop, $$loop.py:"; ../../$(VENV)/bin/python census.py --runner $$loop || exit 1; done
	@exit $$(cat reports/.exit)

test: $(READY)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) pytest -n $(JOBS) --dist worksteal -m "not long"

test-long: $(READY)
	$(RUN) pytest -n $(JOBS) --dist worksteal -m long

clean:
	rm -rf $(VENV) .nox build dist reports *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("testkit: Python 3.10 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "\nnext: make PYTHON=python3.12" if sys.version_info < (3, 10) else 0)'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing testkit and its tools into $(VENV) (minutes the first time: torch is large)"
	@$(RUN) pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@
