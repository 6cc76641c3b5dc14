"""Weights read without torch."""

import io
import os
import pickle

import numpy as np
import pytest

from apl.encoders.torch_weights import read_torch_weights


def saved(tensors: dict) -> bytes:
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save(tensors, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def test_every_tensor_is_what_torch_itself_reads():
    torch = pytest.importorskip("torch")
    whole = torch.arange(24.0).reshape(4, 6)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    tensors = module.state_dict()  # with its metadata
    tensors |= {"transposed": whole.T, "part of a storage": whole[1:3, 2:5], "nothing": torch.zeros(0, 3)}
    found = read_torch_weights(saved(tensors))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor.numpy())
        assert found[name].dtype == tensor.numpy().dtype and found[name].shape == tensor.shape


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("place", range(5))
def test_a_file_that_wants_to_run_something_is_refused_and_nothing_runs(tmp_path, place):
    objects = [1, 1001, {}, {}, []]
    objects[place] = Evil(os.mkdir, str(tmp_path / "made by the file"))
    with pytest.raises(ValueError, match="refused: the file asks for .*mkdir"):
        read_torch_weights(b"".join(pickle.dumps(o, protocol=2) for o in objects))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\neval\n.",
        b"ctorch\nload\n.",
        # Names asked for in newer ways: STACK_GLOBAL with a dotted path, and INST.
        b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.",
        b"(S'true'\nios\nsystem\n.",
    ],
)
def test_only_the_names_of_tensors_are_known(program):
    with pytest.raises(ValueError, match="refused"):
        read_torch_weights(program)
