"""Child process: opens one EPContext wrapper, or compiles one graph, and runs it. ``emulator_worker job.json``"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgeforge.backends import orphan
from edgeforge.backends.qnn import session as sessions
from edgeforge.export import record


def main(argv: list[str]) -> int:
    orphan.end_with_parent()
    path = Path(argv[0])
    job = json.loads(path.read_text(encoding="utf-8"))
    found = sessions.register()
    session = sessions.open_session(Path(job["model"]), found, job["options"], {})
    wanted = {i.name for i in session.get_inputs()}
    for index in range(job["runs"]):
        feeds = record.load_arrays(path.with_name(f"{index}.in.npz"))
        if missing := wanted - set(feeds):
            print(f"Error: no feed for {', '.join(sorted(missing))}", flush=True)
            return 1
        record.save_arrays(path.with_name(f"{index}.out.npz"), sessions.run(session, feeds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
