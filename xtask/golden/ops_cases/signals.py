"""Pooling and Fourier transforms."""

import itertools

import torch
import torch.nn.functional as F

from .case import cases

CASES, case = cases()


def _windows(x, window, stride, padding, fill):
    """`[n, c, out..., window...]`: every window of the padded tensor."""
    pads = list(itertools.chain(*[(p, p) for p in reversed(padding)]))
    windows = F.pad(x, pads, value=fill)
    for axis, (w, s) in enumerate(zip(window, stride)):
        windows = windows.unfold(axis + 2, w, s)
    return windows.flatten(-len(window))


def _pool(c, x, window, stride, padding):
    spatial = len(window)
    max_pool = [F.max_pool1d, F.max_pool2d, F.max_pool3d][spatial - 1]
    avg_pool = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][spatial - 1]
    c.expect("max", max_pool(x, window, stride, padding))
    c.expect("min", -max_pool(-x, window, stride, padding))
    c.expect("mean", avg_pool(x, window, stride, padding, count_include_pad=False))
    c.expect("sum", _windows(x, window, stride, padding, 0.0).sum(-1))
    c.expect("prod", _windows(x, window, stride, padding, 1.0).prod(-1))


@case
def pools_1d(c):
    _pool(c, c.give_normal("x", 2, 3, 11).double(), [4], [3], [2])


@case
def pools_2d(c):
    _pool(c, c.give_normal("x", 2, 2, 7, 8).double(), [3, 2], [2, 1], [1, 0])


@case
def pools_3d(c):
    _pool(c, c.give_normal("x", 1, 2, 5, 6, 4).double(), [2, 3, 2], [2, 2, 1], [1, 1, 0])


def _transforms(c, n):
    re, im = c.give_normal("re", 3, n).double(), c.give_normal("im", 3, n).double()
    there, back = torch.fft.fft(torch.complex(re, im)), torch.fft.ifft(torch.complex(re, im))
    c.expect("fft_re", there.real)
    c.expect("fft_im", there.imag)
    c.expect("ifft_re", back.real)
    c.expect("ifft_im", back.imag)
    half = torch.fft.rfft(re)
    c.expect("rfft_re", half.real)
    c.expect("rfft_im", half.imag)
    spectrum = torch.complex(c.give_normal("half_re", 3, n // 2 + 1), c.give_normal("half_im", 3, n // 2 + 1))
    spectrum = spectrum.to(torch.complex128)
    # The first and, for even lengths, the last frequency of a real signal are real.
    spectrum.imag[:, 0] = 0
    if n % 2 == 0:
        spectrum.imag[:, -1] = 0
    c.expect("irfft", torch.fft.irfft(spectrum, n=n))


@case
def fourier_even(c):
    _transforms(c, 16)


@case
def fourier_odd(c):
    _transforms(c, 15)


@case
def fourier_prime(c):
    _transforms(c, 31)


@case
def fourier_twelve(c):
    _transforms(c, 12)


@case
def fourier_one(c):
    _transforms(c, 1)


@case
def fourier_2d(c):
    re, im = c.give_normal("re", 2, 5, 8).double(), c.give_normal("im", 2, 5, 8).double()
    there, back = torch.fft.fft2(torch.complex(re, im)), torch.fft.ifft2(torch.complex(re, im))
    c.expect("fft_re", there.real)
    c.expect("fft_im", there.imag)
    c.expect("ifft_re", back.real)
    c.expect("ifft_im", back.imag)


@case
def fourier_3d(c):
    re, im = c.give_normal("re", 3, 4, 5).double(), c.give_normal("im", 3, 4, 5).double()
    there = torch.fft.fftn(torch.complex(re, im))
    c.expect("fft_re", there.real)
    c.expect("fft_im", there.imag)
