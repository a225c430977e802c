#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The polynomial coefficients of src/cpu/kernels_exp.h, and their approximation errors.

    exp(r)  = 1 + r + r^2 q(r)        |r| <= ln(2)/2
    2^r     = 1 + r q(r)              0 <= r <= 1
    tanh(x) = x + x^3 t(x^2)          |x| <= FA_TANH_SMALL

q and t are minimax for the relative error of the whole (Remez exchange). Rounding the coefficients to float32
one after the other, lowest order first, and fitting the others again around those already rounded, keeps the
loss by rounding small. Needs mpmath:

    python3 bench/exp_coefficients.py
"""
from mpmath import exp, frexp, log, lu_solve, matrix, mp, mpf, nint, pi, sin, tanh

mp.dps = 40
GRID = 1000


def float32(x):
    """The float32 number nearest to x (normal range)."""
    _, e = frexp(x)
    ulp = mpf(2) ** (e - 24)
    return nint(x / ulp) * ulp


def hexadecimal(x):
    return float(x).hex().replace("0000000p", "p") + "f"


def minimax(target, basis, low, high):
    """Coefficients c for which the maximum of |target - sum c_j basis_j| on [low, high] is least, and that maximum."""
    n = len(basis)
    grid = [low + (high - low) * i / GRID for i in range(GRID + 1)]
    values = [[b(x) for b in basis] for x in grid]
    wanted = [target(x) for x in grid]
    points = [round(GRID * (1 + sin(pi * (mpf(i) / n - mpf(1) / 2))) / 2) for i in range(n + 1)]
    for _ in range(30):
        rows = [values[p] + [(-1) ** i] for i, p in enumerate(points)]
        solution = lu_solve(matrix(rows), matrix([wanted[p] for p in points]))
        c = [solution[j] for j in range(n)]
        error = [w - sum(cj * vj for cj, vj in zip(c, v)) for w, v in zip(wanted, values)]
        # The largest error of every stretch of one sign; of those, the n + 1 neighbours that are largest.
        peaks = [0]
        for i in range(1, GRID + 1):
            if (error[i] > 0) == (error[peaks[-1]] > 0):
                if abs(error[i]) > abs(error[peaks[-1]]):
                    peaks[-1] = i
            else:
                peaks.append(i)
        while len(peaks) > n + 1:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        if len(peaks) < n + 1 or peaks == points:
            break
        points = peaks
    return c, max(abs(e) for e in error)


def rounded_minimax(target, basis, low, high):
    """The same with float32 coefficients."""
    fixed = []
    for j in range(len(basis)):
        rest = lambda x: target(x) - sum(c * b(x) for c, b in zip(fixed, basis))
        c, _ = minimax(rest, basis[j:], low, high)
        fixed.append(float32(c[0]))
    grid = [low + (high - low) * i / GRID for i in range(GRID + 1)]
    return fixed, max(abs(target(x) - sum(c * b(x) for c, b in zip(fixed, basis))) for x in grid)


def show(name, coefficients, error):
    print(f"{name}: relative approximation error {float(error):.2e} = {float(error * 2**23):.3f} * 2^-23")
    for j, c in enumerate(coefficients):
        print(f"    c{j} = {hexadecimal(c):>18}  {float(c):.9g}")


def main():
    half = log(2) / 2 * (1 + mpf(2) ** -20)  # n is rounded from a rounded product: a little beyond
    for terms in (4, 5):
        powers = [lambda r, j=j: r ** (j + 2) / exp(r) for j in range(terms)]
        show(f"exp, degree {terms + 1}", *rounded_minimax(lambda r: 1 - (1 + r) / exp(r), powers, -half, half))
    powers = [lambda r, j=j: r ** (j + 1) / mpf(2) ** r for j in range(5)]
    show("2^r, 0 <= r <= 1, degree 5", *rounded_minimax(lambda r: 1 - 1 / mpf(2) ** r, powers, mpf(0), mpf(1)))
    for small in (mpf(5) / 8, mpf(3) / 4):
        for terms in (4, 5, 6):
            powers = [lambda x, j=j: x ** (2 * j + 3) / tanh(x) for j in range(terms)]
            show(f"tanh, |x| <= {float(small)}, degree {2 * terms + 1}",
                 *rounded_minimax(lambda x: 1 - x / tanh(x), powers, small / 1000, small))
    high = mpf(0x162E4) / 2**17
    print(f"log2(e) = {hexadecimal(float32(1 / log(2)))}, ln(2) = {hexadecimal(high)} + "
          f"{hexadecimal(float32(log(2) - high))}")


if __name__ == "__main__":
    main()
