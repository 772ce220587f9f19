"""Child process: writes one package. ``python -m edgeforge.backends.coreml.worker job.json``

result.json beside the job says how it went: the package's sharing, or what was refused and why.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from edgeforge.backends import orphan
from edgeforge.backends.coreml.job import RESULT, Job
from edgeforge.encodings import Table
from edgeforge.errors import EdgeForgeError
from edgeforge.graph import store
from edgeforge.quantize.weights import palette_file


def main(argv: list[str]) -> int:
    orphan.end_with_parent()
    path = Path(argv[0])
    job = Job.load(path)
    result = path.with_name(RESULT)
    try:
        palettes = palette_file.load(job.palettes) if job.palettes is not None else {}
        model, table = store.load(job.graph), Table.load(job.table)

        from edgeforge.backends.coreml import decoder  # seconds

        sharing = decoder.write(model, table, palettes, job.widths, job.past, job.package)
    except EdgeForgeError as error:
        refused = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        result.write_text(json.dumps({"refused": refused}) + "\n", encoding="utf-8")
        return 1
    result.write_text(json.dumps({"sharing": dataclasses.asdict(sharing)}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
