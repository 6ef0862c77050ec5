"""`python -m fabricpulse.lab.heartbeat`: says when this machine did not run a process that was due.

Prints one line of JSON for the first beat and for each that came more than REPORT_S late:
{"at": monotonic seconds, "late_s": …}.
"""

import json
import sys
import time

HEARTBEAT_S = 0.005
REPORT_S = 0.005


def main() -> None:
    """Beats until it is killed."""
    report_from = 0.0
    last = time.monotonic()
    while True:
        time.sleep(HEARTBEAT_S)
        now = time.monotonic()
        late = now - last - HEARTBEAT_S
        last = now
        if late >= report_from:
            sys.stdout.write(json.dumps({"at": round(now, 4), "late_s": round(late, 4)}) + "\n")
            sys.stdout.flush()
            report_from = REPORT_S


if __name__ == "__main__":
    main()
