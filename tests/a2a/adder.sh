#!/bin/sh
# The agent behind the card: adds the numbers of its task, or works until it is cancelled.
exec python3 -c '
import json, sys, time

task = json.load(sys.stdin)
if task["summary"] == "wait":
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(600)
print(json.dumps({"sum": sum(task["context"]["collected_data"]["numbers"])}))
'
