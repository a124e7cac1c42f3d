"""One thread a process: the kernels are small, and pytest-xdist brings the processes."""

import torch

torch.set_num_threads(1)
