"""Effects and exceptions meet: a graph raises inside a try block after it drew random numbers or changed inputs."""

import torch
import torch.nn.functional as F

from kiln.testing import check

TABLE = torch.randn(5, 4)
GOOD, BAD = torch.tensor([1, 2]), torch.tensor([1, 7])


def test_random_numbers_before_an_operation_that_raises_are_drawn_again():
    def look_up(x, index):
        try:
            y = F.dropout(x, 0.5)
            return y + F.embedding(index, TABLE)
        except IndexError:
            return torch.rand(2)

    check(look_up, calls=[(torch.ones(2, 4), GOOD), (torch.ones(2, 4), BAD)], graphs=1, breaks=0)


def test_a_dropout_that_is_off_draws_nothing():
    def attend(x, index):
        try:
            y = F.scaled_dot_product_attention(x, x, x, dropout_p=0.0) + F.dropout(x, 0.1, False) + F.dropout(x, p=0.0)
            return y + F.embedding(index, TABLE)
        finally:
            torch.ones(1)

    report = check(attend, calls=[(torch.ones(2, 4), GOOD), (torch.ones(2, 4), BAD)], fullgraph=True, tracebacks=False)
    assert len(report.graphs) == 1


def test_a_large_input_changed_in_a_finally_block_is_captured():
    def store(cache, value, index, log):
        log.append("in")
        try:
            cache.index_copy_(0, index, value)
            return cache.sum() + F.embedding(index, TABLE).sum()
        finally:
            log.append("out")

    calls = [(torch.zeros(300, 300), torch.ones(2, 300), GOOD, [])] * 2
    check(store, calls=calls, graphs=1, breaks=0)


def test_a_large_input_changed_before_a_handler_that_looks_breaks_the_graph():
    def store(cache, value, index):
        try:
            with torch.no_grad():
                cache.index_copy_(0, GOOD, value)
                return cache.sum() + F.embedding(index, TABLE).sum()
        except IndexError:
            return cache * 2

    calls = [(torch.zeros(300, 300), torch.ones(2, 300), index) for index in (GOOD, BAD)]
    assert check(store, calls=calls).breaks


def test_a_handler_that_raises_something_else_sees_what_the_graph_raised():
    def store(cache, value, index):
        try:
            cache.index_copy_(0, GOOD, value)
            return cache.sum() + F.embedding(index, TABLE).sum()
        except IndexError as error:
            raise KeyError("none such") from error

    calls = [(torch.zeros(300, 300), torch.ones(2, 300), index) for index in (GOOD, BAD)]
    check(store, calls=calls, tracebacks=False)
