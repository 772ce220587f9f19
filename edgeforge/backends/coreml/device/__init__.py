"""What a bundle carries to the device: standalone files, copied as they are."""
