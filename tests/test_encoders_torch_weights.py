"""Weights read without torch and without trust."""

import io
import os
import pickle

import numpy as np
import pytest

from apl.encoders.torch_weights import read_torch_weights


def _saved(path, tensors):
    torch = pytest.importorskip("torch")
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    return path


def test_every_tensor_is_what_torch_itself_reads(tmp_path):
    torch = pytest.importorskip("torch")
    whole = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "plain": torch.randn(3, 5, generator=torch.Generator().manual_seed(1)),
        "transposed": whole.T,
        "part of a storage": whole[1:3, 2:5],
        "same storage": whole,
        "half": torch.ones(2).half(),
        "double": torch.ones(2).double(),
        "whole numbers": torch.tensor([1, -(2**40)]),
        "truth": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
        "nothing": torch.zeros(0, 3),
    }
    found = read_torch_weights(_saved(tmp_path / "w.pth", tensors))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor.numpy())
        assert found[name].dtype == tensor.numpy().dtype and found[name].shape == tensor.shape


def test_a_module_s_state_dict_with_its_metadata_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    found = read_torch_weights(_saved(tmp_path / "w.pth", module.state_dict()))
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(found[name], tensor.numpy())


class _Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def _stream(*objects, tail=b""):
    return b"".join(pickle.dumps(o, protocol=2) for o in objects) + tail


_MAGIC = 0x1950A86A20F9469CFC6C


@pytest.mark.parametrize("place", range(4))
def test_a_file_that_wants_to_run_something_is_refused_and_nothing_runs(tmp_path, place):
    victim = tmp_path / "made by the file"
    objects = [_MAGIC, 1001, {"little_endian": True}, {}, []]
    objects[place] = _Evil(os.mkdir, str(victim))
    (tmp_path / "w.pth").write_bytes(_stream(*objects))
    with pytest.raises(ValueError, match="refused: the file asks for .*mkdir"):
        read_torch_weights(tmp_path / "w.pth")
    assert not victim.exists()


@pytest.mark.parametrize(
    "asked", ["builtins eval", "builtins getattr", "torch load", "collections Counter", "os system"]
)
def test_only_the_names_of_tensors_are_known(tmp_path, asked):
    module, name = asked.split()
    (tmp_path / "w.pth").write_bytes(f"c{module}\n{name}\n.".encode())
    with pytest.raises(ValueError, match=f"asks for {module}.{name}"):
        read_torch_weights(tmp_path / "w.pth")


@pytest.mark.parametrize(
    "program",
    [
        # Names asked for in newer ways: STACK_GLOBAL with a dotted path, INST, and the registry of extensions.
        b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.",
        b"\x80\x04\x8c\x05torch\x8c\x17FloatStorage.__reduce__\x93.",
        b"(S'true'\nios\nsystem\n.",
        b"\x82\x01.",
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x04pass\x85R.",
        # A bytearray said to be sixteen terabytes long.
        b"\x80\x05\x96" + (2**44).to_bytes(8, "little") + b"x.",
    ],
)
def test_other_ways_of_asking_are_refused_as_well(tmp_path, program):
    (tmp_path / "w.pth").write_bytes(program)
    with pytest.raises(ValueError, match="w.pth"):
        read_torch_weights(tmp_path / "w.pth")


@pytest.mark.parametrize(
    "name", ["torch\nFloatStorage", "torch._utils\n_rebuild_tensor_v2", "collections\nOrderedDict"]
)
def test_a_file_cannot_change_the_reader(tmp_path, name):
    # GLOBAL name, then BUILD with the state {"dtype": 1}: pickle's way of setting attributes.
    (tmp_path / "w.pth").write_bytes(f"c{name}\n".encode() + b"}X\x05\x00\x00\x00dtypeK\x01sb.")
    with pytest.raises(ValueError):
        read_torch_weights(tmp_path / "w.pth")


def _with_tensor(size, stride, offset=0, count=4, announced=4, keys=("0",)):
    stream = io.BytesIO()
    stream.write(_stream(_MAGIC, 1001, {}))
    # Written as opcodes, since the real names live in torch.
    stream.write(b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n")
    stream.write(b"FloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu")
    stream.write(pickle.dumps(announced, 2)[2:-1] + b"NtQ" + pickle.dumps(offset, 2)[2:-1])
    stream.write(pickle.dumps(size, 2)[2:-1] + pickle.dumps(stride, 2)[2:-1] + b"\x89}tRs.")
    stream.write(_stream(list(keys), tail=count.to_bytes(8, "little") + np.arange(count, dtype="<f4").tobytes()))
    return stream.getvalue()


def test_a_tensor_written_by_hand_is_read(tmp_path):
    (tmp_path / "w.pth").write_bytes(_with_tensor((2, 2), (2, 1)))
    np.testing.assert_array_equal(read_torch_weights(tmp_path / "w.pth")["a"], [[0, 1], [2, 3]])


@pytest.mark.parametrize(
    "data",
    [
        _with_tensor((2, 3), (3, 1)),
        _with_tensor((2, 2), (2, 1), offset=1),
        _with_tensor((2, 2), (-2, 1)),
        _with_tensor((10**6, 10**6), (0, 0)),
        _with_tensor((4,), (1,), announced=2**40),
        _with_tensor((4,), (1,), count=3),
        _with_tensor((4,), (1,))[:-1],
        _with_tensor((4,), (1,), keys=()),
        _with_tensor((4,), (1,), keys=("0", "0")),
        _with_tensor((4,), (1,), keys=("1",)),
        _with_tensor((4,), (2**62,)),
        b"",
        b"not a pickle",
        _stream(_MAGIC + 1, 1, {}, {}, []),
        _stream(_MAGIC, 1, {}, ["a list"], []),
        _stream(_MAGIC, 1, {}, {"a": "text"}, []),
    ],
)
def test_a_damaged_or_dishonest_file_is_refused_in_one_sentence(tmp_path, data):
    (tmp_path / "w.pth").write_bytes(data)
    with pytest.raises(ValueError, match="w.pth"):
        read_torch_weights(tmp_path / "w.pth")


def test_the_newer_zip_format_is_named(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="newer zip format"):
        read_torch_weights(tmp_path / "w.pth")
