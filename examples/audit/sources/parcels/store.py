"""The parcels that were sent, in a file of JSON lines."""

import json
import os
import time


class Store:
    """All parcels that were ever sent."""

    def __init__(self, path="parcels.jsonl"):
        self.path = path

    def add(self, tracking, recipient, cents):
        entry = {"tracking": tracking, "to": recipient, "cents": cents, "at": time.time()}
        with open(self.path, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def all(self):
        if not os.path.exists(self.path):
            return []
        with open(self.path) as file:
            return [json.loads(line) for line in file]

    def find(self, tracking):
        for entry in self.all():
            if entry["tracking"] == tracking:
                return entry

    def forget_before(self, moment):
        """Remove older entries. A crash in between loses all entries."""
        # TODO: write beside the old file and rename
        kept = [entry for entry in self.all() if entry["at"] >= moment]
        with open(self.path, "w") as file:
            for entry in kept:
                file.write(json.dumps(entry) + "\n")
