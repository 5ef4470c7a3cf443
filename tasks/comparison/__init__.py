"""Two runs on the same items: what changed, by how much, and whether it is believable."""
