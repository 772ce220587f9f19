"""Test vectors that a device replays without Python: raw files, input lists for qnn-net-run, and a manifest."""
