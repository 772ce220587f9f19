"""Apple: .mlpackage files for the Neural Engine, written and executed on any machine. Nothing here ran on a device."""
