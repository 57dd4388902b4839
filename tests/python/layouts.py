"""The same values in other memory: each function returns a tensor equal to x, laid out anew."""


def misaligned(x):
    """Dense, its base off by one element."""
    buffer = x.new_empty(x.numel() + 1)
    return buffer[1:].view(x.shape).copy_(x)


def padded_rows(x):
    """Rows of the innermost axis one element longer than they need to be (head strides of D+1)."""
    buffer = x.new_full((*x.shape[:-1], x.shape[-1] + 1), 7)
    return buffer[..., :-1].copy_(x)


def padded_misaligned(x):
    buffer = x.new_full((*x.shape[:-1], x.shape[-1] + 3), 7)
    return buffer[..., 1:-2].copy_(x)


def outer_reversed(x):
    """The outer axes in the opposite order in memory: heads before tokens."""
    axes = [*range(x.dim() - 1)][::-1] + [x.dim() - 1]
    return x.permute(axes).contiguous().permute(axes)


def every_second(x):
    """Every second place of the outermost axis of a larger tensor."""
    buffer = x.new_full((2 * x.shape[0], *x.shape[1:]), 7)
    return buffer[::2].copy_(x)


def every_second_inner(x):
    """Every second place of the innermost axis."""
    buffer = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), 7)
    return buffer[..., ::2].copy_(x)


ALL = (
    misaligned,
    padded_rows,
    padded_misaligned,
    outer_reversed,
    every_second,
    every_second_inner,
)


def expanded(x, axis):
    """x's first slice along `axis`, repeated by a zero stride."""
    return x.narrow(axis, 0, 1).expand(x.shape)
