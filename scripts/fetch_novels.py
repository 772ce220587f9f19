"""Six English novels as text files, to evaluate on: what calibration (manuals, code, chat) is not.

    python scripts/fetch_novels.py FOLDER

Jane Austen's novels (public domain) as Debian packages them for R: r-cran-janeaustenr 1.0.0 (MIT), 1.6 MB, from the
machine's own apt sources; neither root nor R is needed. Nothing of it is stored with EdgeForge, and nothing of it
belongs into calibration.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "r-cran-janeaustenr"
_DATA = Path("usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
_BINARY = b"X\n"
"""opens R's binary serialisation, versions 2 and 3 (R Internals, section 1.8)"""
_STRINGS, _STRING, _MISSING = 16, 9, -1
NOVELS = {
    "EMMA": "emma", "MANSFIELD PARK": "mansfield_park", "NORTHANGER ABBEY": "northanger_abbey",
    "PERSUASION": "persuasion", "PRIDE AND PREJUDICE": "pride_and_prejudice",
    "SENSE AND SENSIBILITY": "sense_and_sensibility",
}


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["apt-get", "download", PACKAGE], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        (deb,) = Path(scratch).glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(deb), scratch], check=True)
        found = dict(novels((Path(scratch) / _DATA).read_bytes()))
    if missing := NOVELS.keys() - found.keys():
        sys.exit(f"{PACKAGE} no longer holds {', '.join(sorted(missing))} where it was")
    out.mkdir(parents=True, exist_ok=True)
    for title, text in found.items():
        path = out / f"{NOVELS[title]}.txt"
        path.write_text(text, encoding="utf-8")
        print(f"{path}  {len(text):,} characters")


def novels(data: bytes) -> Iterator[tuple[str, str]]:
    """Title and text of every novel in a lazy-load database: R objects behind zlib, the length of each before it."""
    while data:
        record = zlib.decompressobj()
        lines = _lines(record.decompress(data[4:]))
        data = record.unused_data
        if lines and (title := lines[0].strip().upper()) in NOVELS:
            yield title, "\n".join(lines) + "\n"


def _lines(data: bytes) -> list[str]:
    """The character vector that a serialised object is; empty when it is something else."""
    start = data.find(struct.pack(">i", _STRINGS))
    if not data.startswith(_BINARY) or start < 0:
        return []
    (count,), place = struct.unpack_from(">i", data, start + 4), start + 8
    lines = []
    for _ in range(count):
        flags, length = struct.unpack_from(">ii", data, place)
        if flags & 0xFF != _STRING:
            return []
        place += 8
        if length != _MISSING:
            lines.append(data[place: place + length].decode("utf-8", "replace"))
            place += length
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/fetch_novels.py FOLDER")
    main(Path(sys.argv[1]))
