"""Figures of logits and weights against loops over queries and keys."""
import math

import pytest
import torch

from swin_rpe_mm.visualization.statistics import (
    logit_statistics,
    mean_distance,
    relative_entropy,
    saturated_share,
    total_norm,
)

T, HEADS, NQ, NK = 3, 2, 5, 7


@pytest.fixture
def case():
    """Logits, a bias, and a mask that leaves one query a single key and counts some queries for nothing."""
    torch.manual_seed(1)
    content = torch.randn(T, HEADS, NQ, NK, dtype=torch.float64)
    bias = torch.randn(HEADS, NQ, NK, dtype=torch.float64)
    visible = torch.rand(T, NQ, NK) < 0.6
    visible[..., 0] = True
    visible[1, 2, 1:] = False
    queries = torch.rand(T, NQ) < 0.7
    queries[1, 2] = True
    return content, bias, visible, queries


def rows(visible, queries):
    """Window, head, query, and the keys that it sees, of all queries that count."""
    for t in range(T):
        for head in range(HEADS):
            for i in range(NQ):
                if queries[t, i]:
                    yield t, head, i, visible[t, i].nonzero().flatten().tolist()


def moments(x, visible, queries):
    values, distances = [], []
    for t, head, i, keys in rows(visible, queries):
        row = [float(x[t, head, i, j]) for j in keys]
        values += row
        distances += [(value - sum(row) / len(row))**2 for value in row]
    return sum(values) / len(values), math.sqrt(sum(distances) / len(distances)), max(map(abs, values))


@pytest.mark.parametrize('per_window', [False, True])
def test_against_loops(case, per_window):
    content, bias, visible, queries = case
    whole = bias.expand(T, -1, -1, -1) * (torch.arange(1, T + 1)[:, None, None, None] if per_window else 1)
    found = logit_statistics(content, whole if per_window else bias, visible, queries)
    for name, x in dict(content=content, bias=whole).items():
        expected = moments(x, visible, queries)
        assert [float(found[f'{name}_{key}']) for key in ('mean', 'std', 'max')] == pytest.approx(expected, rel=1e-12)

    shares = []
    for t, head, i, keys in rows(visible, queries):
        weights = torch.tensor([float(content[t, head, i, j] + whole[t, head, i, j]) for j in keys]).double().softmax(0)
        if len(keys) > 1:
            shares.append(-sum(float(w) * math.log(w) for w in weights) / math.log(len(keys)))
    assert float(found['entropy']) == pytest.approx(sum(shares) / len(shares), rel=1e-6)


def test_no_bias(case):
    content, _, visible, queries = case
    assert set(logit_statistics(content, None, visible, queries)) == {
        'content_mean', 'content_std', 'content_max', 'entropy'}


def test_what_softmax_does_not_see(case):
    """A constant for each query changes neither deviations nor entropy."""
    content, bias, visible, queries = case
    one = logit_statistics(content, bias, visible, queries)
    two = logit_statistics(content + torch.randn(T, HEADS, NQ, 1), bias + torch.randn(HEADS, NQ, 1), visible, queries)
    for key in ('content_std', 'bias_std', 'entropy'):
        assert float(two[key]) == pytest.approx(float(one[key]), rel=1e-9)
    assert abs(float(two['content_mean'] - one['content_mean'])) > 1e-3


def test_what_no_query_sees_counts_for_nothing(case):
    content, bias, visible, queries = case
    one = logit_statistics(content, bias, visible, queries)
    hidden = content.masked_fill(~visible[:, None], float('nan')).masked_fill(~queries[:, None, :, None], 1e9)
    two = logit_statistics(hidden, bias, visible, queries)
    assert {key: float(value) for key, value in one.items()} == {key: float(value) for key, value in two.items()}


def test_entropy_at_its_ends(case):
    *_, visible, queries = case
    even = visible[:, None] / visible.sum(-1)[:, None, :, None]
    assert float(relative_entropy(even.expand(-1, HEADS, -1, -1), visible, queries)) == pytest.approx(1)
    one = torch.zeros(T, HEADS, NQ, NK).index_fill(3, torch.tensor(0), 1.)
    assert float(relative_entropy(one, visible, queries)) == 0
    no_choice = torch.zeros_like(visible).index_fill(2, torch.tensor(0), True)
    assert float(relative_entropy(one, no_choice, queries)) == 0


def test_mean_distance(case):
    content, _, visible, queries = case
    weights = content.masked_fill(~visible[:, None], float('-inf')).softmax(-1)
    offsets = torch.randint(-4, 5, (2, NQ, NK))
    expected = torch.zeros(HEADS, dtype=torch.float64)
    for t, head, i, keys in rows(visible, queries):
        expected[head] += sum(float(weights[t, head, i, j]) * math.hypot(*offsets[:, i, j].tolist()) for j in keys)
    expected /= int(queries.sum())
    torch.testing.assert_close(mean_distance(weights, offsets, queries), expected)


def test_saturated_share():
    values = [torch.tensor([[0.001, 0.5]]), torch.tensor([0.999, 0.02, 0.98])]
    assert float(saturated_share(values)) == pytest.approx(2 / 5)


def test_total_norm_of_several_dtypes():
    tensors = [torch.full((2, 2), 3.), torch.full((4, ), 300., dtype=torch.float16)]  # whose squares overflow there
    assert float(total_norm(tensors)) == pytest.approx(math.sqrt(4 * 9 + 4 * 90000))
