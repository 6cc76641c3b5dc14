"""The paper's decoders against its appendix, computed step by step: a change to any step is a difference here."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from apl.config import ConvConfig, DecoderConfig, DecoderKind, Group, LearnerConfig
from apl.decoder import build_decoder
from apl.decoder.inputs import Neighbourhood
from apl.decoder.lstm import LSTMDecoder
from apl.decoder.relational import RelationalBlock, RelationalDecoder
from apl.decoder.working_memory import RelationalMemoryCore, WorkingMemoryDecoder
from apl.encoder import ConvEncoder

WIDTH, WAY, K, HIDDEN, HEADS = 6, 5, 4, 16, 2


def decoder_of(kind: DecoderKind, **changes: object) -> torch.nn.Module:
    """A decoder of random weights, biases and gains included."""
    torch.manual_seed(0)
    config = DecoderConfig(kind, "fixed", WAY, hidden=HIDDEN, blocks=2, unroll=3, heads=HEADS, label_width=8)
    decoder = build_decoder(replace(config, **changes), WIDTH).double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return decoder


def rows(queries: int = 3) -> tuple[Tensor, Neighbourhood]:
    chance = torch.Generator().manual_seed(1)
    query = torch.randn(queries, WIDTH, generator=chance, dtype=torch.float64)
    embedding = torch.randn(queries, K, WIDTH, generator=chance, dtype=torch.float64)
    label = torch.randint(WAY, (queries, K), generator=chance)
    distance = (query[:, None] - embedding).norm(dim=-1)
    mask = torch.ones(queries, K, dtype=torch.bool)
    same = label[:, :, None] == label[:, None]
    return query, Neighbourhood(embedding, distance, mask, same, torch.zeros(queries), label)


def heads_of(x: Tensor) -> Tensor:
    """[query, state, hidden] cut into heads: [query, head, state, part]."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = heads_of(q) @ heads_of(k).transpose(-1, -2) / math.sqrt(HIDDEN // HEADS)
    return (scores.softmax(-1) @ heads_of(v)).transpose(1, 2).flatten(2)


def block_by_hand(block: RelationalBlock, states: Tensor) -> Tensor:
    q, k, v = block.attention.to_qkv(states).chunk(3, -1)
    mixed = block.attention.merge(attend(q, k, v))
    linear, norm = block.shared[1], block.shared[2]
    return states + norm(linear(F.relu(mixed)))


def core_by_hand(core: RelationalMemoryCore, slots: Tensor, fed: Tensor) -> Tensor:
    seen = torch.cat([slots, fed], 1)
    k, v = core.to_kv(seen).chunk(2, -1)
    proposal = core.after_attention(slots + attend(core.to_q(slots), k, v))
    proposal = core.after_mlp(proposal + core.mlp(proposal))
    write, forget = (core.gates_of_input(fed) + core.gates_of_memory(slots.tanh())).chunk(2, -1)
    return torch.sigmoid(forget + 1) * slots + torch.sigmoid(write) * torch.tanh(proposal)


def states_by_hand(decoder: torch.nn.Module, query: Tensor, parts: list[Tensor]) -> Tensor:
    """The "none" state, then the projected inputs of each neighbour."""
    return torch.cat([decoder.inputs.none(query)[:, None], decoder.inputs.project(torch.cat(parts, -1))], 1)


def pooled_by_hand(decoder: torch.nn.Module, found: Neighbourhood, states: Tensor) -> Tensor:
    """A softmax of the negative distances weighs the states."""
    scaled = found.distance / math.sqrt(WIDTH)
    scaled = torch.cat([decoder.inputs.none_distance.expand(len(scaled), 1), scaled], 1)
    odds = torch.exp(-decoder.sharpness * scaled)
    weight = odds / odds.sum(1, keepdim=True)
    return torch.einsum("qs,qsh->qh", weight, decoder.norm(states))


def logits(decoder: torch.nn.Module, pooled: Tensor) -> Tensor:
    return decoder.labels.logits(pooled).log_softmax(-1)


def test_the_relational_decoder_is_the_appendix_s() -> None:
    decoder, (query, found) = decoder_of("relational"), rows()
    assert isinstance(decoder, RelationalDecoder)
    label = decoder.labels.embedding.weight[found.label]
    distance = found.distance[..., None] / math.sqrt(WIDTH)
    states = states_by_hand(decoder, query, [query[:, None].expand(-1, K, -1), found.embedding, label, distance])
    for block in decoder.blocks:
        states = block_by_hand(block, states)
    expected = logits(decoder, pooled_by_hand(decoder, found, states))
    torch.testing.assert_close(decoder(query, found).log_probs, expected)


def test_the_working_memory_is_the_appendix_s_with_slots_of_neighbours_alone() -> None:
    decoder, (query, found) = decoder_of("working_memory"), rows()
    assert isinstance(decoder, WorkingMemoryDecoder)
    label = decoder.labels.embedding.weight[found.label]
    slots = states_by_hand(decoder, query, [found.embedding, label, found.distance[..., None] / math.sqrt(WIDTH)])
    fed = decoder.feed(query)[:, None]
    for _ in range(3):
        slots = core_by_hand(decoder.core, slots, fed)
    expected = logits(decoder, pooled_by_hand(decoder, found, slots))
    torch.testing.assert_close(decoder(query, found).log_probs, expected)


def lstm_by_hand(decoder: LSTMDecoder, query: Tensor, read: list[Tensor]) -> Tensor:
    """The gates of an LSTM, from the query's state on."""
    cell = decoder.cell
    h, c = decoder.start(query).chunk(2, -1)
    h = h.tanh()
    for x in read:
        gates = x @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
        write, forget, proposal, output = gates.chunk(4, -1)
        c = forget.sigmoid() * c + write.sigmoid() * proposal.tanh()
        h = output.sigmoid() * c.tanh()
    return logits(decoder, decoder.norm(h))


def test_the_lstm_starts_as_the_query_and_reads_embeddings_and_labels_the_nearest_last() -> None:
    decoder, (query, found) = decoder_of("lstm"), rows()
    assert isinstance(decoder, LSTMDecoder)
    label = decoder.labels.embedding.weight[found.label]
    read = decoder.inputs.project(torch.cat([found.embedding, label], -1))
    farthest_first = [read[:, i] for i in (3, 2, 1, 0)]
    said = decoder(query, found).log_probs
    torch.testing.assert_close(said, lstm_by_hand(decoder, query, farthest_first))
    assert not torch.allclose(said, lstm_by_hand(decoder, query, farthest_first[::-1]))


@pytest.mark.parametrize("kind", ["relational", "working_memory"])
def test_a_nearer_neighbour_weighs_more(kind: DecoderKind) -> None:
    decoder, (query, found) = decoder_of(kind), rows()
    with torch.no_grad():
        decoder.sharpness.fill_(2.0)
    near = found.distance.clone()
    near[:, 0] /= 10
    weight, nearer = (decoder(query, replace(found, distance=d)).weight[:, 0] for d in (found.distance, near))
    assert (nearer > weight).all()


def test_the_query_is_fed_as_often_as_configured() -> None:
    decoder, (query, found) = decoder_of("working_memory"), rows()
    fed: list[Tensor] = []
    decoder.core.register_forward_hook(lambda module, given, made: fed.append(given[1]))
    decoder(query, found)
    assert len(fed) == 3 and all(torch.equal(x, decoder.feed(query)[:, None]) for x in fed)


def test_the_defaults_are_the_paper_s() -> None:
    decoder = DecoderConfig(labels="fixed", way=20)
    assert (decoder.kind, decoder.hidden, decoder.blocks, decoder.unroll) == ("relational", 512, 8, 5)
    assert not decoder.compare and not decoder.class_means
    encoder = ConvConfig()
    assert not encoder.skip and encoder.groups == (Group(64, 3),) * 4
    learner = LearnerConfig()
    assert not learner.distance_gradient and learner.metric == "euclidean"


def test_the_built_decoder_has_the_default_size() -> None:
    relational = build_decoder(DecoderConfig(labels="fixed", way=20), 256)
    assert len(relational.blocks) == 8 and relational.labels.logits.in_features == 512
    assert build_decoder(DecoderConfig("working_memory", "fixed", 20), 256).steps == 5
    assert build_decoder(DecoderConfig("lstm", "fixed", 20), 256).cell.hidden_size == 512


def test_skip_connections_add_a_block_s_input_where_shapes_agree() -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 1, 12, 12)
    config = ConvConfig(image_size=12, stem_channels=4, groups=(Group(4, 3),))
    plain, skipping = (ConvEncoder(replace(config, skip=skip)).eval() for skip in (False, True))
    skipping.load_state_dict(plain.state_dict())
    for encoder in (plain, skipping):
        h = encoder.stem(images)
        for i, block in enumerate(encoder.blocks):
            made = block.conv(F.relu(block.norm(h)))
            h = h + made if encoder is skipping and i > 0 else made
        h = h.flatten(1)
        torch.testing.assert_close(encoder(images), F.layer_norm(h, h.shape[1:]))
