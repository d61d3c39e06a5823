"""Foreground masks for data that has none: landmarks, hull, refinement."""
