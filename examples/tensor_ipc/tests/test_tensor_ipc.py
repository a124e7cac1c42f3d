"""An encoder and a decoder, each a process of its own, and what passes between them."""

import pytest
import torch
from tensor_ipc import lend, received, send

ENCODER, DECODER = 0, 1
pytestmark = pytest.mark.ranks(2)


def sample(shape, dtype, seed=0):
    numbers = torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (3, 5), (0, 4)])
def test_a_tensor_arrives_as_it_was(rank, channel, shape, dtype):
    if rank == ENCODER:
        send(channel, sample(shape, dtype))
    else:
        with received(channel) as (tensor,):
            assert (tensor.shape, tensor.dtype) == (shape, dtype)
            assert torch.equal(tensor, sample(shape, dtype))


@pytest.mark.parametrize("view", ["transposed", "every other column", "expanded"])
def test_a_view_arrives_with_the_elements_that_it_shows(rank, channel, view):
    whole = sample((4, 6), torch.bfloat16)
    views = {"transposed": whole.T, "every other column": whole[:, ::2], "expanded": whole[:1].expand(4, 6)}
    if rank == ENCODER:
        send(channel, views[view])
    else:
        with received(channel) as (tensor,):
            assert torch.equal(tensor, views[view])


def test_several_messages_of_several_tensors_are_under_way_at_once(rank, channel):
    messages = [[sample((7,), torch.bfloat16, seed), sample((2, 3), torch.int64, seed)] for seed in range(4)]
    if rank == ENCODER:
        for tensors in messages:
            send(channel, *tensors)
    channel.barrier("all are sent")
    if rank == DECODER:
        for tensors in messages:
            with received(channel) as got:
                assert all(map(torch.equal, got, tensors))


def test_a_decoder_that_fails_gives_the_memory_back(rank, channel):
    if rank == ENCODER:
        send(channel, torch.ones(3))  # what is left of it fails this test: ranks_leaks in pytest.ini
    else:
        with pytest.raises(RuntimeError, match="planted"), received(channel):
            raise RuntimeError("planted")


@pytest.mark.gpus
def test_a_tensor_on_the_gpu_is_lent_and_not_copied(rank, channel):
    if rank == ENCODER:
        tensor = torch.zeros(1024, dtype=torch.bfloat16, device="cuda")
        channel.put(lend(tensor))
        channel.event("returned").wait()  # to here the tensor has to live
        assert tensor[:2].tolist() == [7.0, 0.0]
        del tensor
        torch.cuda.ipc_collect()  # torch's own file in shared memory, with the count of lent tensors, goes now
    else:
        rebuild, arguments = channel.get()
        tensor = rebuild(*arguments)
        tensor[0] = 7
        torch.cuda.synchronize()
        del tensor
        channel.event("returned").set()
