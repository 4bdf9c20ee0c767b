"""PyTorch: the program as plain functions of tensors, which autograd, `torch.func` and `torch.compile` take."""
