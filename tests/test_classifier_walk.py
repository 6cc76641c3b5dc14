"""How far a verb walks: code objects and modules of the library that one call passes, and SQL statements on a file."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sqlite3, sys, tempfile

import numpy as np

statements = 0
connect = sqlite3.connect


def counted(*args, **options):
    connection = connect(*args, **options)

    def trace(_):
        global statements
        statements += 1

    connection.set_trace_callback(trace)
    return connection


sqlite3.connect = counted
from apl import OnlineClassifier
from apl.store import sqlite_file

# The timer of the write-ahead log must not fire in between.
sqlite_file.CHECKPOINT_SECONDS = 1000.0


def walk(call):
    global statements
    codes = set()

    def note(frame, event, _):
        if event == "call" and "/apl/" in frame.f_code.co_filename:
            codes.add(frame.f_code)

    call()
    statements = 0
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(codes), len({code.co_filename for code in codes}), statements


random = np.random.default_rng(1)
vector = lambda: random.normal(size=64).astype(np.float32)
with tempfile.TemporaryDirectory() as folder, OnlineClassifier.for_features(64, memory=f"{folder}/m.apl") as clf:
    for i in range(40):
        clf.learn_one(vector(), f"c{i % 5}")
    print(json.dumps([walk(lambda: clf.learn_one(vector(), "c1")), walk(lambda: clf.predict_one(vector()))]))
"""


def test_one_call_passes_few_functions_and_statements() -> None:
    """Without the checks at run time that tests have elsewhere: in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    (learn, learn_modules, learn_statements), (predict, predict_modules, predict_statements) = json.loads(done.stdout)
    assert predict <= 39 and predict_modules <= 13 and predict_statements == 0
    assert learn <= 100 and learn_modules <= 20 and learn_statements <= 5
