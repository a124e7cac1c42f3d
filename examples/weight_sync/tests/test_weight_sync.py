"""The engine as its trainer drives it over HTTP: pause, update, resume."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from weight_sync.serve import VARIABLE, digest

from testkit.processes import ServerError

ARGV = [sys.executable, "-m", "weight_sync.serve", "{port}"]
WHERE = {"ready": "/health", "cwd": Path(__file__).parents[1]}
NEW = [1.0, 2.0, 3.0]
UPDATE = {"version": 1, "weights": NEW, "checksum": digest(NEW)}
INITIAL = {"phase": "running", "version": 0, "running": 0}


@pytest.fixture
def engine(server):
    return server(ARGV, **WHERE)


@pytest.fixture
def beside():
    """A post beside others. Named before ``engine``, so that the server ends first and nobody waits for it."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def test_after_pause_update_and_resume_it_answers_with_the_new_weights(engine):
    assert engine.post("/generate", json={"tokens": 3}).json()["tokens"] == [0.0, 0.0, 0.0]
    assert engine.post("/pause").json()["phase"] == "paused"
    assert engine.post("/update", json=UPDATE).status == 200
    assert engine.post("/resume").status == 200
    engine.wait_for("/state", {"phase": "running", "version": 1}, timeout=3)
    assert engine.post("/generate", json={"tokens": 3}).json() == {"tokens": NEW, "end": "length"}


def test_an_update_while_it_runs_is_refused(engine):
    refused = engine.post("/update", json=UPDATE)
    assert (refused.status, refused.json()) == (409, {"error": "the engine is running; pause it first"})
    assert engine.get("/state").json() == INITIAL


def test_pause_waits_for_the_generations_that_run(beside, engine):
    running = beside(engine.post, "/generate", json={"tokens": 100})
    engine.wait_for("/state", {"running": 1})
    assert engine.post("/pause", json={"mode": "drain"}).json() == {"phase": "paused", "version": 0, "running": 0}
    assert running.result().json() == {"tokens": [0.0] * 100, "end": "length"}


def test_nothing_new_is_generated_from_the_beginning_of_a_pause_on(beside, engine):
    endless = beside(engine.post, "/generate", json={"tokens": 10**9})
    engine.wait_for("/state", {"running": 1})
    drain = beside(engine.post, "/pause", json={"mode": "drain"})
    engine.wait_for("/state", {"phase": "pausing"}, timeout=5)
    assert engine.post("/generate").status == 503
    assert engine.post("/update", json=UPDATE).status == 409
    assert engine.post("/pause", json={"mode": "abort"}).json()["phase"] == "paused"  # it would drain for ever
    assert endless.result().json()["end"] == "aborted"
    assert drain.result().json()["phase"] == "paused"
    assert engine.post("/generate").json() == {"error": "the engine is paused"}


@pytest.mark.parametrize("damage", [{"checksum": "0" * 64}, {"weights": [1.0, 2.0, 4.0]}])
def test_damaged_weights_leave_the_old_ones(engine, damage):
    engine.post("/pause")
    assert engine.post("/update", json={**UPDATE, **damage}).status == 422
    engine.post("/resume")
    assert engine.post("/generate", json={"tokens": 1}).json()["tokens"] == [0.0]
    assert engine.get("/state").json() == INITIAL


def test_a_restart_forgets_phase_and_weights(engine):
    engine.post("/pause")
    engine.post("/update", json=UPDATE)
    engine.restart()
    assert engine.get("/state").json() == INITIAL


def test_a_server_that_is_killed_while_it_loads_is_noticed_and_its_last_words_are_shown(server):
    engine = server(ARGV, **WHERE, env={VARIABLE: "killed-in-update"})
    engine.post("/pause")
    with pytest.raises(ServerError, match="ended by itself during POST /update: SIGKILL") as failure:
        engine.post("/update", json=UPDATE)
    assert "loading 3 weights of version 1" in str(failure.value)
    engine.stop()  # this end was wanted; one that nobody asked for would fail the test
