"""Core AI, Apple's successor of Core ML (iOS 27, macOS 27): the decoder's graph as an .aimodel, executed by Apple's own
runtime on this machine. It shares neither emitter nor interpreter with the Core ML package, so it judges both.

Distributions: coreai-core, coreai-torch (beta). Compiling for a device needs a Mac (`xcrun coreai-build`).
"""
