"""The search for scales and codes of one weight, from nothing but the Gram matrix of what it reads.

Weights are [inputs, outputs], so that one input channel is a contiguous row, and every output is a problem
of its own: y = x w. With H = X'X over calibration tokens an error e of w costs |X e|^2 = e' H e exactly,
however many tokens H has seen: no forward pass per candidate.
"""
