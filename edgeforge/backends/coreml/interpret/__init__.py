"""A finished .mlpackage executed from disk, op by op: what the package says, whoever wrote it.

Nothing here knows the emitter. The program is read as the protobuf message that it is, weight.bin as the file that it
is, so that a weight stored wrongly, or under another's name, shows. It is no simulation of the Neural Engine: what that
rounds, and in what order it sums, is not published.
"""
