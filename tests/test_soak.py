"""The soak test itself runs: short, since nobody else starts it between two releases."""

import sys
import warnings

import pytest

import soak


@pytest.fixture
def brief(monkeypatch):
    """Small blocks, and a full check after each, so that the third one loads the buffer."""
    monkeypatch.setattr(soak, "BLOCK", 100)
    monkeypatch.setattr(soak, "FULL", 1)


@pytest.mark.filterwarnings("ignore::lofo_rl.LofoWarning")
def test_every_lane_is_checked_saved_and_loaded(brief, monkeypatch, capsys):
    assert soak.resident() >= 0
    monkeypatch.setattr(soak, "resident", lambda: 0.0)  # other tests share this process
    monkeypatch.setattr(sys, "argv", ["soak.py", "--inserts", "6e3"])
    with warnings.catch_warnings():
        soak.main()
    *lanes, last = capsys.readouterr().out.splitlines()
    assert len(lanes) == len(soak.LANES) and last == "6,000 inserts, 0 differences, flat memory"
    for line, lane in zip(lanes, soak.LANES, strict=True):
        assert line.startswith(lane.name) and "0 differences" in line
    assert all("  3 states compared" in line for line in lanes[-4:])


def test_a_wrong_row_is_noticed(brief, monkeypatch):
    lane = soak.LANES[0]
    monkeypatch.setattr(soak, "expected_row", lambda buffer, place, group: lane.capacity)
    with pytest.raises(AssertionError, match="took row 0, brute force says 30000"):
        soak.soak(lane, 1, 0)
