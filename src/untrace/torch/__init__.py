"""PyTorch in: a module of PyTorch becomes JAX source, through torchax. Needs the extra `untrace[torch]`.

bridge     torchax, made to work with the installed PyTorch; operations written for readers (`ops`)
state      a module's parameters and buffers as nested dicts with PyTorch's own names
capture    a module and its inputs -> a JAX function, and which module call made which equation
sizes      which sizes of the inputs may differ, and what in a trace follows them
general    one text for all of those sizes, proven at the example's own
structure  the module tree as the call tree: one function per module class
printing   the text: `params["layers"]["0"]`, PyTorch's statements beside ours
weights    `load_params` in the written module
functions  `torch.autograd.Function` with its own derivative
randomness what JAX drew, handed to PyTorch
compare    the text against PyTorch itself
annotate   PyTorch's source with the JAX of each line beside it
"""

from __future__ import annotations
