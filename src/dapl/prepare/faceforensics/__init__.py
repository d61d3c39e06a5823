"""From the videos of FaceForensics++ to faces with masks and landmarks."""
