from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgeforge_runtime.errors import ContextOverflow, ExecutorError, RunError
from edgeforge_runtime.manifest import IDS, MASK, Graph
from edgeforge_runtime.session import Session, common_prefix
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB, Tiny

CL = 32
IDS32 = [int(i) for i in np.random.default_rng(3).integers(3, VOCAB, CL)]


def db(reference: Any, actual: Any) -> float:
    return float(10 * np.log10(np.square(reference).sum() / (np.square(reference - actual).sum() + 1e-30)))


def rows(session: Session, ids: list[int]) -> Any:
    return np.concatenate(list(session.score(ids)))


@pytest.fixture(params=[True, False], ids=["transposed", "plain"])
def transposed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Spy:
    """An executor that keeps what it was fed."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.calls = inner, []

    def run(self, graph: Graph, feeds: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((graph, {n: a.copy() for n, a in feeds.items()}))
        return dict(self.inner.run(graph, feeds))

    def close(self) -> None:
        self.inner.close()


def spied(folder: Path) -> tuple[Session, Spy]:
    session = Session.open(folder)
    session._executor = spy = Spy(session._executor)
    return session, spy


@pytest.mark.parametrize(("quantized", "least"), [(False, 120), (True, 30)], ids=["float", "qdq"])
@pytest.mark.parametrize("two_parts", [False, True], ids=["whole", "split"])
def test_every_row_equals_a_plain_forward_pass(
    tmp_path: Path, transposed: bool, quantized: bool, least: float, two_parts: bool
) -> None:
    tiny = Tiny(transposed=transposed, quantized=quantized, two_parts=two_parts)
    with Session.open(tiny.write(tmp_path)) as session:
        got, wanted = rows(session, IDS32), tiny.reference(IDS32)
    assert got.shape == (CL, VOCAB)
    assert got.dtype == np.float32
    assert min(db(w, g) for w, g in zip(wanted, got, strict=True)) > least - 10
    assert db(wanted, got) > least


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 23, 24, 25, 31, 32])
def test_prompts_of_every_length_give_their_last_row(tmp_path: Path, transposed: bool, length: int) -> None:
    tiny = Tiny(transposed=transposed)
    with Session.open(tiny.write(tmp_path)) as session:
        assert db(tiny.reference(IDS32)[length - 1], session.prompt(IDS32[:length])) > 120
        assert session.tokens == tuple(IDS32[:length])


@pytest.mark.parametrize("widths", [(32,), (16, 4), (8, 1), (4,), (1,)], ids=str)
def test_chunking_equals_one_shot(tmp_path: Path, transposed: bool, widths: tuple[int, ...]) -> None:
    """Also widths without AR-1: the end of the context is read again with what comes behind."""
    tiny = Tiny(transposed=transposed, widths=widths)
    with Session.open(tiny.write(tmp_path)) as session:
        assert db(tiny.reference(IDS32), rows(session, IDS32)) > 120
        session.prompt(IDS32[:20])
        stepped = [session.step(i) for i in IDS32[20:]]
        assert db(tiny.reference(IDS32)[20:], np.array(stepped)) > 120
        with pytest.raises(ContextOverflow):
            session.step(5)


def test_context_boundary_is_exact(tmp_path: Path) -> None:
    with Session.open(Tiny().write(tmp_path)) as session:
        assert session.context == CL
        session.prompt(IDS32)
        message = "the prompt has 33 tokens, 1 more than the context of 32"
        with pytest.raises(ContextOverflow, match=message) as error:
            session.prompt([*IDS32, 5])
        assert (error.value.tokens, error.value.context) == (33, 32)
        with pytest.raises(ContextOverflow):
            session.step(5)
        assert session.tokens == tuple(IDS32), "a refused prompt changes nothing"
        assert session.prompt(IDS32[:31]) is not None
        assert session.step(IDS32[31]) is not None


def test_a_smaller_model_context_wins(tmp_path: Path) -> None:
    with Session.open(Tiny().write(tmp_path, context=20)) as session:
        session.prompt(IDS32[:20])
        with pytest.raises(ContextOverflow):
            session.prompt(IDS32[:21])


@pytest.mark.parametrize(
    ("length", "widths"),
    [
        (1, [1]),
        (5, [8]),
        (8, [8]),
        (9, [8, 1]),
        (10, [8, 8]),
        (24, [8, 8, 8]),
        (26, [8, 8, 8, 8]),
        (32, [8, 8, 8, 8]),
    ],
)
def test_prefill_takes_the_widest_graph_that_fits(tmp_path: Path, length: int, widths: list[int]) -> None:
    session, spy = spied(Tiny().write(tmp_path))
    session.prompt(IDS32[:length])
    assert [g.ar for g, _ in spy.calls] == widths


def test_a_wide_graph_without_room_gives_way(tmp_path: Path) -> None:
    """At n_past = CL - AR it still runs, one token later it does not."""
    session, spy = spied(Tiny().write(tmp_path))
    session.prompt(IDS32[:24])
    session.prompt(IDS32[:32])
    assert [g.ar for g, _ in spy.calls] == [8, 8, 8, 8]
    spy.calls.clear()
    session.prompt(IDS32[:25])
    session.prompt(IDS32[:32])
    assert [g.ar for g, _ in spy.calls] == [1, *[1] * 7]


def test_restrides_one_per_switch(tmp_path: Path) -> None:
    with Session.open(Tiny().write(tmp_path)) as session:
        session.prompt(IDS32[:16])
        assert session.restrides == 0
        for token in IDS32[16:20]:
            session.step(token)
        assert session.restrides == 1
        session.prompt([*IDS32[:17], 9, 8, 7])
        assert session.restrides == 2
        session.step(6)
        assert session.restrides == 3


def test_mask_and_positions_are_the_contract(tmp_path: Path, transposed: bool) -> None:
    tiny = Tiny(transposed=transposed, quantized=True)
    session, spy = spied(tiny.write(tmp_path))
    session.prompt(IDS32[:11])
    (_, first), (_, second) = spy.calls
    mask = np.zeros((8, CL), np.uint16)
    mask[:, CL - 8 :][np.tri(8, dtype=bool)] = 65535
    np.testing.assert_array_equal(first[MASK][0, 0], mask)
    mask[:] = 0
    for row in range(3):
        mask[row, :8] = 65535
        mask[row, CL - 8 : CL - 8 + row + 1] = 65535
    np.testing.assert_array_equal(second[MASK][0, 0], mask, "rows of padding are wholly masked")
    np.testing.assert_array_equal(second[IDS], [[*IDS32[8:11], 0, 0, 0, 0, 0]])
    cos, _ = tiny.rope()
    decoded = (second["position_ids_cos"][0, 0].astype(np.float64) - 32768) * 2 / 65535
    np.testing.assert_allclose(decoded[:3], cos[8:11], atol=2 / 65535)
    axis = tiny.axes[0]
    past = np.moveaxis(second["past_key_0_in"], axis, 0)
    assert (past[8:] == 128).all()
    assert not (past[:8] == 128).all()


@pytest.mark.parametrize("two_parts", [False, True], ids=["whole", "parts"])
def test_layers_with_a_table_of_their_own_turn_by_it(tmp_path: Path, two_parts: bool) -> None:
    """Each part takes the rows that its layers turn by; a model that turned by one table would be below 20 dB."""
    tiny = Tiny(swa=True, two_parts=two_parts)
    session, spy = spied(tiny.write(tmp_path))
    session.prompt(IDS32[:11])
    for position, token in enumerate(IDS32[11:24]):
        made = session.step(token)
        assert db(tiny.reference(IDS32[:12 + position])[-1], made) > 120
    assert db(Tiny().reference(IDS32[:24])[-1], made) < 20
    rows = {"position_ids_cos", "position_ids_sin", "swa_position_ids_cos", "swa_position_ids_sin"}
    graph, feeds = spy.calls[0]
    assert rows <= set(feeds)
    if two_parts:
        taken = [rows & {t.name for t in part.inputs} for part in graph.parts]
        assert taken == [{"swa_position_ids_cos", "swa_position_ids_sin"}, {"position_ids_cos", "position_ids_sin"}]


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "qdq"])
def test_reuse_equals_cold(tmp_path: Path, transposed: bool, quantized: bool) -> None:
    """Bit for bit, where the calls are the same: the turn's cut lies on a chunk's border."""
    folder = Tiny(transposed=transposed, quantized=quantized).write(tmp_path)
    turn1, turn2 = IDS32[:21], [*IDS32[:16], 80, 81, 82, 83, 84, 85]
    with Session.open(folder) as warm, Session.open(folder) as cold:
        warm.prompt(turn1)
        for token in (7, 8, 9):
            warm.step(token)
        got = warm.prompt(turn2)
        assert warm.reused == 16
        np.testing.assert_array_equal(got, cold.prompt(turn2))
        np.testing.assert_array_equal(warm.step(5), cold.step(5))


def test_reuse_off_the_chunk_border_is_close(tmp_path: Path) -> None:
    tiny = Tiny()
    with Session.open(tiny.write(tmp_path)) as session:
        session.prompt(IDS32[:19])
        session.step(IDS32[19])
        again = [*IDS32[:20], 4, 5, 6]
        assert db(tiny.reference(again)[-1], session.prompt(again)) > 120
        assert session.reused == 20
        assert db(tiny.reference(again)[-1], session.prompt(again)) > 120
        assert session.reused == 22, "the last token is always read: its logits are wanted"


@settings(max_examples=15, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=CL), min_size=2, max_size=4),
    widths=st.sampled_from([(8, 1), (16, 4), (4,)]),
)
def test_any_conversation_equals_a_cold_start(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]], widths: tuple[int, ...]
) -> None:
    tiny = Tiny(widths=widths)
    with Session.open(tiny.write(tmp_path_factory.mktemp("bundle"))) as session:
        for ids in prompts:
            assert db(tiny.reference(ids)[-1], session.prompt(ids)) > 110


def test_tokens_without_a_slot_do_not_count_as_reused(tmp_path: Path) -> None:
    """AR-4 alone keeps CL - 4 tokens; the last ones are read again."""
    tiny = Tiny(widths=(4,))
    with Session.open(tiny.write(tmp_path)) as session:
        session.prompt(IDS32)
        again = [*IDS32[:31], 4]
        assert db(tiny.reference(again)[-1], session.prompt(again)) > 120
        assert session.reused == 28


def test_last_row_graphs_pad_in_front(tmp_path: Path, transposed: bool) -> None:
    tiny = Tiny(transposed=transposed, last_row=(8,))
    session, spy = spied(tiny.write(tmp_path))
    for length in (5, 8, 11, 21):
        session.prompt([50 + length, *IDS32[:length]])
        wanted = tiny.reference([50 + length, *IDS32[:length]])[-1]
        assert db(wanted, session.prompt([50 + length, *IDS32[:length]])) > 120
    assert {g.ar for g, _ in spy.calls} == {8, 1}
    assert db(tiny.reference(IDS32), rows(session, IDS32)) > 120, "all rows come from the graph that has them"


def test_every_row_needs_a_graph_that_gives_it(tmp_path: Path) -> None:
    with (
        Session.open(Tiny(widths=(8,), last_row=(8,)).write(tmp_path)) as session,
        pytest.raises(RunError, match="every row"),
    ):
        rows(session, IDS32[:4])


def test_wrong_ids_are_named(tmp_path: Path) -> None:
    with Session.open(Tiny().write(tmp_path)) as session:
        for ids in ([VOCAB], [3, -1]):
            with pytest.raises(RunError, match="outside the vocabulary of 90"):
                session.prompt(ids)
        with pytest.raises(RunError, match="no tokens"):
            session.prompt([])


def test_a_failed_call_leaves_the_session_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Tiny()
    session, spy = spied(tiny.write(tmp_path))
    session.prompt(IDS32[:8])
    with monkeypatch.context() as patch:
        patch.setattr(spy, "run", lambda *_: (_ for _ in ()).throw(ExecutorError("dead")))
        with pytest.raises(ExecutorError):
            session.prompt(IDS32[:20])
    assert session.tokens == tuple(IDS32[:8])
    assert db(tiny.reference(IDS32)[19], session.prompt(IDS32[:20])) > 120


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0
