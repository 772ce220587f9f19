"""What a log says: its culprits and the nodes that it names."""

from __future__ import annotations

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


def test_refused_nodes_leave_out_the_shell_unless_there_is_nothing_else() -> None:
    line = "Unsupported nodes in QNN EP: { name: x.dq, type: DequantizeLinear }"
    assert refused_nodes(line) == {"x.dq"}
    assert refused_nodes(line + "{ name: bad, type: Det }") == {"bad"}
    assert refused_nodes("backendValidateOpConfig() failed for node `norm` of type `LayerNorm` with error code 3110"
                         ) == {"norm"}
    assert refused_nodes("nothing") == frozenset()
