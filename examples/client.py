"""Teach and ask a running service: `apl serve --model text`, then `python examples/client.py http://127.0.0.1:8000`.

With tokens: `python examples/client.py URL TOKEN`.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from apl import Client

TABLE = Path(__file__).parent / "intents.csv"


def main(url: str, token: str | None = None) -> str:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with Client(url, token) as client:
        receipts = client.learn_many([row["text"] for row in rows], [row["label"] for row in rows])
        print(f"{sum(receipt.written for receipt in receipts)} of {len(receipts)} examples became rows of the memory")
        question = "has my card been sent yet?"
        answer = client.predict_proba_one(question)
        predicted = str(next(iter(answer)))
        print(f"{question} {predicted} ({answer[predicted]:.0%}); something new: {answer.new_class:.0%}")
        print(client.explain(question).why)
    return predicted


if __name__ == "__main__":
    main(*sys.argv[1:])
