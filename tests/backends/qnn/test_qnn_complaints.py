"""What a log says: its culprits and the nodes that it names."""

from __future__ import annotations

import subprocess
import sys

from edgeforge.backends.qnn.complaints import culprits, refused_nodes


def test_culprits_name_the_operator_and_leave_out_its_shell() -> None:
    log = (
        "\x1b[1;31m2026-01-01 00:00:00.1 [E:onnxruntime:, a.cc:1 F] Unsupported nodes in QNN EP:"
        " { name: x.dq, type: DequantizeLinear }{ name: bad, type: Det }\x1b[m\n"
        "noise\n"
    )
    assert culprits(log) == ("Unsupported nodes in QNN EP: bad (Det)",)


def test_culprits_fall_back_to_the_last_lines() -> None:
    assert culprits("one\n\ntwo\n") == ("one", "two")
    assert culprits("") == ()


def test_a_crashs_stacks_of_threads_say_nothing_of_the_graph() -> None:
    """What Python writes of itself when a signal ends it: "Thread 0x... (most recent call first):" was the cause."""
    code = ("import faulthandler, os, signal, sys, threading\nfaulthandler.enable()\n"
            "def deep(n):\n    deep(n - 1) if n else (begun.release(), threading.Event().wait())\n"
            "begun = threading.Semaphore(0)\n"
            "for n in (3, 150): threading.Thread(target=deep, args=(n,), daemon=True).start(); begun.acquire()\n"
            "print(sys.argv[1], flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    for words, told in (("", ()), ("last words", ("last words",)), ("Error: no memory", ("Error: no memory",))):
        done = subprocess.run([sys.executable, "-c", code, words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        assert "Thread 0x" in done.stdout.replace("Current thread", "")
        assert "\n  ...\n" in done.stdout
        assert culprits(done.stdout) == told


def test_refused_nodes_leave_out_the_shell_unless_there_is_nothing_else() -> None:
    line = "Unsupported nodes in QNN EP: { name: x.dq, type: DequantizeLinear }"
    assert refused_nodes(line) == {"x.dq"}
    assert refused_nodes(line + "{ name: bad, type: Det }") == {"bad"}
    assert refused_nodes("backendValidateOpConfig() failed for node `norm` of type `LayerNorm` with error code 3110"
                         ) == {"norm"}
    assert refused_nodes("nothing") == frozenset()
