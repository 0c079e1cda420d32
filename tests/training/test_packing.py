"""Several exchanges in one sequence: every token keeps the position and the neighbours that it would have alone."""

from npc_runtime.training.lora import TokenizedExchange, pack

A = TokenizedExchange((1, 2, 3, 10, 11), (20, 21, 99))
B = TokenizedExchange((1, 2, 3, 12), (22, 99))


def test_the_shared_beginning_stands_once():
    packed = pack([A, B])
    assert packed.ids == [1, 2, 3, 10, 11, 20, 21, 12, 22]
    assert packed.positions == [0, 1, 2, 3, 4, 5, 6, 3, 4]
    assert packed.branches == [-1, -1, -1, 0, 0, 0, 0, 1, 1]


def test_each_reply_token_is_predicted_by_the_token_before_it():
    packed = pack([A, B])
    assert packed.targets == [20, 21, 99, 22, 99]
    assert [packed.ids[source] for source in packed.sources] == [11, 20, 21, 12, 22]


def test_equal_prompts_keep_the_token_that_predicts_the_reply():
    packed = pack([B, B])
    assert packed.ids == [1, 2, 3, 12, 22, 12, 22]
    assert [packed.ids[source] for source in packed.sources] == [12, 22, 12, 22]


def test_one_exchange_alone_is_a_plain_sequence():
    packed = pack([A])
    assert packed.ids == [1, 2, 3, 10, 11, 20, 21]
    assert packed.positions == list(range(7))
