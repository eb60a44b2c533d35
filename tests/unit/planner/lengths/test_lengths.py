"""Length models: moments, history, features, ranker, choice, censoring, order of input."""

import numpy as np
import numpy.typing as npt
import pytest
from drumroll_planner.lengths import Groups, LengthModels, Outlook, Prompts, with_siblings
from drumroll_planner.lengths.family import LongTail
from drumroll_planner.lengths.history import History, Running
from drumroll_planner.lengths.normal import beyond, hazard, inverse, survival
from drumroll_planner.lengths.scoring import Board, pinball, spearman
from hypothesis import given, settings
from hypothesis import strategies as st

LIMIT = 4096


def groups(rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.floating], limit: int = LIMIT) -> Groups:
    cut = np.minimum(lengths, limit).astype(np.float32)
    return Groups(rows, cut, lengths >= limit, np.full(len(rows), np.nan, np.float32))


def feed(models: LengthModels, table: npt.NDArray[np.floating], *, batch: int = 32) -> None:
    for start in range(0, len(table), batch):
        rows = np.arange(start, min(len(table), start + batch))
        models.observe(groups(rows, table[rows]))


def drawn(seed: int, num: int, *, width: int = 8, mean: float = 6.0) -> npt.NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    effects = generator.normal(mean, 0.8, (num, 1))
    return np.exp(effects + generator.normal(0.0, 0.3, (num, width)))


def test_normal_moments_are_those_of_a_large_sample() -> None:
    sample = np.random.default_rng(0).standard_normal(400_000)
    for cut in (-1.0, 0.5, 2.0):
        over = sample[sample > cut]
        mean, variance = beyond(np.array([cut * 2 + 1]), np.array([1.0]), np.array([2.0]))
        assert mean[0] == pytest.approx(1 + 2 * over.mean(), abs=0.03)
        assert variance[0] == pytest.approx(4 * over.var(), abs=0.05)
    assert survival(np.array([1.96]))[0] == pytest.approx(0.025, abs=1e-4)
    assert inverse(np.array([0.975]))[0] == pytest.approx(1.96, abs=1e-3)
    assert hazard(np.array([30.0]))[0] == pytest.approx(30.0333, abs=1e-3)


def test_an_outlook_of_nothing_is_constant_and_its_quantiles_rise_up_to_the_limit() -> None:
    outlook = Outlook.constant(5, limit=600)
    assert outlook.is_constant
    assert Outlook.constant(0, limit=9).is_constant
    low, high = outlook.quantile(0.1), outlook.quantile(0.999)
    assert (low < high).all()
    assert (high <= 600).all()
    assert ((low < outlook.expected()) & (outlook.expected() < 600)).all()
    future = outlook.draw(np.random.default_rng(1), 8)
    assert future.shape == (5, 8)
    assert future.min() >= 1
    assert future.max() <= 600
    assert len(outlook.take(np.array([1, 3]))) == 2


def test_draws_have_the_quantiles_that_are_predicted() -> None:
    outlook = Outlook.constant(4000, limit=10**6)
    outlook = Outlook(outlook.mean, np.full(4000, 0.5, np.float32), outlook.spread, outlook.limit, outlook.shape)
    future = outlook.draw(np.random.default_rng(2), 4)
    for probability in (0.1, 0.5, 0.9):
        assert float((future <= outlook.quantile(probability)[:, None]).mean()) == pytest.approx(probability, abs=0.02)


def test_earlier_answers_of_a_prompt_predict_its_next_ones() -> None:
    table = drawn(1, 256, width=16)
    models = LengthModels(Prompts.of(np.full(256, 50, np.int32)), limit=LIMIT)
    assert not models.has_history
    feed(models, table[:, :8])
    feed(models, table[:, 8:])
    report = models.report()
    assert models.has_history
    assert (report.again, report.first) == ("history", "none")
    scores = {score.model: score for score in report.again_scores}
    assert scores["history"].rank_correlation > 0.9 > 0.3 > scores["none"].rank_correlation
    assert scores["history"].quantile_loss < 0.6 * scores["none"].quantile_loss
    siblings = {score.model: score.quantile_loss for score in report.sibling_scores}
    assert siblings["siblings"] < siblings["without"]
    assert report.num_answers == 256 * 16
    assert report.moved < 0.2
    assert models.num_bytes <= 24 * 256
    outlook = models.outlook()
    assert spearman(np.log(table.mean(axis=1)), outlook.mean.astype(np.float64)) > 0.95
    inside = (np.minimum(table, LIMIT) <= outlook.quantile(0.9)[:, None]).mean()
    assert 0.85 < inside < 0.97


def test_a_prompt_seen_once_is_shrunk_to_the_mean_and_doubted_more() -> None:
    models = LengthModels(Prompts.of(np.full(64, 50, np.int32)), limit=LIMIT)
    table = drawn(2, 64)
    feed(models, table[:63])
    outlook = models.outlook()
    assert outlook.doubt[63] > 1.2 * outlook.doubt[:63].max()
    assert abs(outlook.mean[63] - np.log(table[:63]).mean()) < 0.3


def test_answers_that_were_cut_count_as_longer_than_the_cut() -> None:
    table = drawn(3, 200, mean=7.0)
    models = LengthModels(Prompts.of(np.full(200, 50, np.int32)), limit=1200)
    for start in range(0, 200, 20):
        rows = np.arange(start, start + 20)
        models.observe(groups(rows, table[rows], limit=1200))
    outlook = models.outlook()
    always = (table >= 1200).all(axis=1)
    assert always.any()
    assert (np.exp(outlook.mean[always]) > 1200).all()
    assert models.report().censored_share == pytest.approx((table >= 1200).mean(), abs=1e-6)
    assert (outlook.quantile(0.99) <= 1200).all()
    assert models.report().again == "history"


def test_what_is_known_of_prompts_predicts_where_it_matters() -> None:
    num = 1500
    generator = np.random.default_rng(4)
    level = generator.integers(0, 5, num).astype(np.float32)
    table = np.exp(4.5 + 0.5 * level[:, None] + generator.normal(0, 0.3, (num, 4)))
    prompts = Prompts(np.full(num, 50, np.int32), np.zeros(num, np.int16), level)
    models = LengthModels(prompts, limit=LIMIT)
    feed(models, table[:1000])
    report = models.report()
    assert report.first == "features"
    fresh = models.outlook(np.arange(1000, num))
    assert spearman(fresh.mean.astype(np.float64), table[1000:].mean(axis=1)) > 0.8


def test_the_ranker_learns_words_that_make_answers_long() -> None:
    num = 1200
    generator = np.random.default_rng(5)
    kind = generator.integers(0, 6, num)
    ids = [
        np.concatenate([generator.integers(100, 400, 20), [kind[row] * 7 + 1], [5, 6]]).astype(np.int32)
        for row in range(num)
    ]
    ids[0] = np.zeros(0, np.int32)
    table = np.exp(4.5 + 0.4 * kind[:, None] + generator.normal(0, 0.2, (num, 4)))
    models = LengthModels(Prompts.of(np.full(num, 23, np.int32), lambda rows: [ids[row] for row in rows]), limit=LIMIT)
    feed(models, table[:1000])
    assert models.report().first == "ranker"
    fresh = models.outlook(np.arange(1000, num))
    assert spearman(fresh.mean.astype(np.float64), table[1000:].mean(axis=1)) > 0.8


@pytest.mark.parametrize("model", ["none", "history", "features", "ranker"])
def test_a_model_that_is_named_is_used(model: str) -> None:
    ids = [np.arange(4, dtype=np.int32)] * 64
    prompts = Prompts.of(np.full(64, 4, np.int32), lambda rows: [ids[row] for row in rows])
    models = LengthModels(prompts, limit=LIMIT, model=model)  # type: ignore[arg-type]
    feed(models, drawn(6, 64))
    report = models.report()
    assert report.again == model
    assert report.first == ("none" if model == "history" else model)
    assert models.outlook().is_constant == (model == "none")


def test_drift_tells_how_much_longer_answers_became() -> None:
    table = drawn(7, 700)
    models = LengthModels(Prompts.of(np.full(700, 50, np.int32)), limit=10**6)
    feed(models, table)
    models.outlook()
    feed(models, table * 1.5)
    assert models.report().drift == pytest.approx(0.5, abs=0.15)


def test_a_spread_of_passes_is_learned_as_a_prompts_own_change() -> None:
    generator = np.random.default_rng(8)
    table = drawn(8, 400)
    models = LengthModels(Prompts.of(np.full(400, 50, np.int32)), limit=10**6)
    feed(models, table)
    feed(models, table * np.exp(generator.normal(0, 0.5, (400, 1))))
    assert models.report().moved == pytest.approx(0.5, abs=0.15)


def test_siblings_pull_a_prediction_towards_themselves() -> None:
    mean, variance = with_siblings(np.array([6.0]), np.array([0.5]), np.array([0.3]), np.array([7.0]), np.array([4.0]))
    assert 6.9 < mean[0] < 7.0
    assert variance[0] < 0.03


def test_groups_of_lists_do_not_depend_on_their_order() -> None:
    rows, lengths = [3, 1, 2], [[5.0, 6.0], [7.0], [8.0, 9.0]]
    one = Groups.of(rows, lengths, [[False, True], [False], [False, False]], [0.5, 1.0, 0.0])
    other = Groups.of(rows[::-1], lengths[::-1], [[False, False], [False], [False, True]], [0.0, 1.0, 0.5])
    for name in ("rows", "lengths", "censored", "rewards"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name != "censored")
    assert np.isnan(Groups.of([1], [[2.0]]).rewards).all()
    assert len(Groups.of([], [])) == 0


def test_nothing_is_learned_from_empty_groups() -> None:
    models = LengthModels(Prompts.of(np.full(4, 5, np.int32)), limit=LIMIT)
    nothing = np.full((4, 2), np.nan, np.float32)
    models.observe(Groups(np.arange(4), nothing, np.zeros((4, 2), bool), np.zeros(4, np.float32)))
    assert not models.has_history


def test_boards_keep_the_cheapest_model_that_is_not_beaten() -> None:
    board = Board(["cheap", "costly"])
    assert board.best(default="costly") == "costly"
    assert board.scores() == ()
    actual = np.random.default_rng(0).normal(6, 1, 200)
    noise = np.random.default_rng(1).normal(0, 1, 200)
    losses = np.abs(noise)
    board.add({"cheap": noise, "costly": noise}, {"cheap": losses, "costly": losses * 0.999}, actual)
    assert board.best(default="costly") == "cheap"
    for _ in range(6):
        board.add({"cheap": noise, "costly": actual}, {"cheap": losses, "costly": losses}, actual)
    assert board.best(default="cheap") == "costly"


def test_spearman_and_pinball_are_the_textbook_ones() -> None:
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0])) == pytest.approx(0.5)
    assert spearman(np.ones(3), np.array([1.0, 2.0, 3.0])) == 0.0
    loss = pinball(np.zeros((1, 4)), np.array([[1.0, np.nan]]))
    assert loss[0] == pytest.approx((0.1 + 0.5 + 0.9 + 0.98) / 4)


def test_a_running_mean_forgets_and_ignores_nothing() -> None:
    mean = Running(10.0, 5.0)
    mean.add(0.0, 0.0)
    assert mean.value == 5.0
    for _ in range(50):
        mean.add(2.0, 1.0)
    assert mean.value == pytest.approx(2.0, abs=1e-6)
    assert History(3).num_bytes == 3 * 13


def test_the_generated_family_has_the_tail_that_it_says() -> None:
    table = LongTail().draw(4000, 8, seed=1)
    logs = np.log(table)
    assert np.array_equal(table, LongTail().draw(4000, 8, seed=1))
    assert 0.65 < logs.mean(axis=1).var() / logs.var() < 0.85
    ordered = np.sort(table.reshape(-1))
    assert ordered[-len(ordered) // 10 :].sum() / ordered.sum() > 0.35


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 100), batch=st.sampled_from([8, 16]))
def test_the_same_answers_in_the_same_batches_give_the_same_predictions(seed: int, batch: int) -> None:
    table = drawn(seed, 48, width=3)
    both = []
    for _ in range(2):
        models = LengthModels(Prompts.of(np.full(48, 5, np.int32)), limit=LIMIT, seed=seed)
        feed(models, table, batch=batch)
        both.append(models.outlook())
    for name in ("mean", "doubt", "spread", "shape"):
        assert getattr(both[0], name).tobytes() == getattr(both[1], name).tobytes()
